"""Which tokens a reader would see."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"  # a part of a character alone


def visible_tokens(model: Path, count: int) -> torch.Tensor:
    """Whether each of a model's first `count` tokens has a character that is neither white nor
    broken, [count] bool.
    """
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = tokenizer.decode_batch([[token] for token in range(count)], skip_special_tokens=False)
    return torch.tensor([_is_visible(text) for text in texts])


def _is_visible(text: str) -> bool:
    return REPLACEMENT not in text and any(
        letter.isprintable() and not letter.isspace() for letter in text
    )
