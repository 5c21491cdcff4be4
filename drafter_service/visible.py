"""Tells which tokens a reader would see."""

from __future__ import annotations

from pathlib import Path

import torch

from tandem.protos.tokenizer import texts_of

REPLACEMENT = "\ufffd"  # stands in the text of a token that is only a part of a character


def visible_tokens(model: Path, count: int) -> torch.Tensor:
    """Tell which of a model's first `count` tokens have a visible character and no broken one,
    [count] bool.
    """
    return torch.tensor([_is_visible(text) for text in texts_of(model, count)])


def _is_visible(text: str) -> bool:
    return REPLACEMENT not in text and any(
        letter.isprintable() and not letter.isspace() for letter in text
    )
