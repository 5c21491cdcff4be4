"""What llama.cpp computes of texts by itself, each in a fresh cache: whole, and a token at a time.

The difference between these two is how far rounding carries a model; our way of feeding it, many
sessions and trees in one cache, may be a few times as far from them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from tandem.engine.gguf.llama import BatchRow, ContextSize, LlamaContext, LlamaModel
from tandem.engine.model.reference import (
    OTHER,
    STREAM,
    ReferenceLogits,
    branching,
    text_length,
)
from tandem.engine.model.rounding import ReferenceText

FACTOR = 4.0
FLOORS = {"f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}  # of a logit: no two ways are taken for closer
CACHED = {0: 1e-4, 1: 1e-2, 30: 5e-2}  # the same by how keys and values are cached
ROUNDED = 0.25  # the same where rows are rounded to 8 bits before they are multiplied


def reference_logits(
    weights: LlamaModel, size: ContextSize, stored: str, longest: int
) -> ReferenceLogits:
    """The texts of a self-test and their logits."""
    rng, longest = random.Random(0), text_length(longest)
    vocabulary = range(weights.lib.llama_vocab_n_tokens(weights.vocabulary))
    some = partial(rng.choices, vocabulary)
    tokens, other = some(k=longest), some(k=min(OTHER, longest))
    branch = branching(longest)
    context = LlamaContext(weights, replace(size, cells=longest, sequences=1))

    def text(content: Sequence[int], places: Sequence[int], lead: int) -> ReferenceText:
        """A text whose first `lead` tokens are fed whole, and the rest a token at a time."""
        context.remove(0, 0)
        rows = [BatchRow(token, place, [0], place in places) for place, token in enumerate(content)]
        pieces = [rows[:lead], *([row] for row in rows[lead:])]
        logits = torch.cat([torch.from_numpy(context.decode(piece)) for piece in pieces if piece])
        return ReferenceText(tuple(content), dict(zip(places, logits.unbind(), strict=True)), {})

    every = range(longest)
    main = text(tokens, every, longest)
    side = text(tokens[: branch.start] + some(k=len(branch)), branch, branch.stop)
    beside = text(other, range(len(other)), len(other))
    again = text(tokens, every, max(longest - STREAM, 0))
    difference = max(
        (row - again.logits[place]).abs().max().item() for place, row in main.logits.items()
    )
    unit = torch.stack(list(main.logits.values())).abs().median().item()
    floor = max(FLOORS.get(stored, ROUNDED), CACHED[size.kind])
    limit = min(unit, max(FACTOR * difference, floor * unit))
    for each in (main, side, beside):
        each.limits.update(dict.fromkeys(each.logits, limit))
    return ReferenceLogits(main, side, beside, smooth=True)
