"""Reads the tokens of a tokenizer, computes their fingerprint, and compares two tokenizers. A
drafter can propose its own token ids only if all or nearly all of them stand for the same tokens in
the target's vocabulary.

This module reads `tokenizer.json` or the head of a GGUF file. The module loads no tokenizer
library, so importing it is cheap for every service.
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

# vocabularies are nearly equal if at least this share of the smaller one's ids mean the same token
NEARLY = 0.99


class Likeness(StrEnum):
    """How alike the tokenizers of a drafter and of its target are."""

    EQUAL = "equal"  # every id means the same token
    NEARLY = "nearly equal"  # drafts are trees of the target's ids; ids that differ are masked
    FOREIGN = "foreign"  # drafts are texts, which are converted into the target's tokens


def tokens_by_id(folder: Path) -> dict[int, str]:
    """Return a map from token ids to tokens, read from a model folder or a GGUF file. Raises
    Unusable if the tokens cannot be read.
    """
    if gguf.is_gguf(folder):
        return gguf.tokens(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise Unusable(f"{folder} has no tokenizer.json: a fast Hugging Face tokenizer is needed")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{path} is not a tokenizer file with a vocabulary") from error
    if isinstance(vocabulary, dict):
        tokens = {index: token for token, index in vocabulary.items()}
    else:  # a unigram model lists [token, score] pairs
        tokens = {index: pair[0] for index, pair in enumerate(vocabulary)}
    return tokens | {added["id"]: added["content"] for added in content.get("added_tokens", ())}


def fingerprint(folder: Path) -> str:
    """Return a short hash of all ids and tokens, such as `9f86d081884c7d65`. Raises Unusable."""
    lines = (f"{index} {token!r}" for index, token in sorted(tokens_by_id(folder).items()))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def likeness(one: Mapping[int, str], other: Mapping[int, str]) -> Likeness:
    """Return how similar two vocabularies are. Vocabularies are nearly equal if at least 99 % of
    the ids in the smaller one mean the same token in both. Tokens that only the larger vocabulary
    has are ignored, because they do not hinder drafting with the shared tokens.

    Merges and the rules for splitting texts are not compared. A drafter receives and proposes ids,
    so it is enough that each id means the same string in both vocabularies.
    """
    if one == other:
        return Likeness.EQUAL
    smaller, larger = sorted((one, other), key=len)
    same = sum(larger.get(index) == token for index, token in smaller.items())
    return Likeness.NEARLY if same >= NEARLY * len(smaller) else Likeness.FOREIGN
