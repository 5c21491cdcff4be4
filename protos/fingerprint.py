"""The tokens of a tokenizer, their fingerprint, and the likeness of two tokenizers. A drafter can
propose its own token ids only if all or nearly all of them mean the same to its target.

This module reads `tokenizer.json` or the head of a GGUF file. The module loads no tokenizer
library, so every service can afford to import it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from tandem.protos import gguf
from tandem.protos.errors import Unusable

NEARLY = 0.99  # least share of the smaller one's ids that mean the same if two are nearly equal


class Likeness(StrEnum):
    """How alike the tokenizers of a drafter and of its target are."""

    EQUAL = "equal"  # every id means the same token
    NEARLY = "nearly equal"  # ids that differ are masked, and drafts are trees of the target's ids
    FOREIGN = "foreign"  # drafts are texts, which are translated into the target's tokens


def tokens_by_id(folder: Path) -> dict[int, str]:
    """Return the token of every id in the tokenizer of a folder or GGUF file; raises Unusable."""
    if gguf.is_gguf(folder):
        return gguf.tokens(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise Unusable(f"{folder} has no tokenizer.json: a fast Hugging Face tokenizer is needed")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{path} is not a tokenizer with a vocabulary") from error
    if isinstance(vocabulary, dict):
        tokens = {index: token for token, index in vocabulary.items()}
    else:  # a unigram model lists [token, score] pairs
        tokens = {index: pair[0] for index, pair in enumerate(vocabulary)}
    return tokens | {added["id"]: added["content"] for added in content.get("added_tokens", ())}


def fingerprint(folder: Path) -> str:
    """Return a short hash of the token of every id, e.g. `9f86d081884c7d65`; raises Unusable."""
    lines = (f"{index} {token!r}" for index, token in sorted(tokens_by_id(folder).items()))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def likeness(one: Mapping[int, str], other: Mapping[int, str]) -> Likeness:
    """Return how alike two vocabularies are, which may be given in either order. Nearly equal
    vocabularies agree in at least 99 of 100 ids of the smaller one. Tokens that only the larger one
    has are not counted: the other tokens can be drafted all the same.

    Merges and the rules for splitting texts are not compared. A drafter reads and proposes ids, so
    it is enough that each id means the same string in both vocabularies.
    """
    if one == other:
        return Likeness.EQUAL
    smaller, larger = sorted((one, other), key=len)
    same = sum(larger.get(index) == token for index, token in smaller.items())
    return Likeness.NEARLY if same >= NEARLY * len(smaller) else Likeness.FOREIGN
