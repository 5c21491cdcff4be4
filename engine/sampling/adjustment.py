"""Adjust the logits of many texts at once, as each text's sampling options require, before tokens
are drawn.

An adjustment contains only the changes to a row of logits, not the sampling options that cause
them. Adjustments are applied in the same order as in transformers: bias, penalties, suppressed
tokens, grammar. The adjustments of all rows are copied to the rows' device together, without
waiting for the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.sampling.uploads import upload

Ids = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Adjustment:
    """The adjustment of one row of logits: lists of tokens, and the changes to the logits of these
    tokens. No list contains a token twice. All tokens are in the vocabulary.
    """

    biased: Ids
    biases: Numbers
    seen: Ids  # logits of these tokens: divided by `repetition` if positive, else multiplied
    repetition: float
    counted: Ids  # these tokens' logits are reduced by `presence` plus `frequency` per occurrence
    counts: Ids
    presence: float
    frequency: float
    barred: Ids
    allowed: npt.NDArray[np.bool_] | None = None  # whether each token is allowed, [vocab]


def adjust(logits: Sequence[torch.Tensor], adjustments: Sequence[Adjustment]) -> torch.Tensor:
    """Concatenate tensors of logits, each [rows, vocab], and apply one adjustment to each row.
    Returns [all rows, vocab].
    """
    rows = torch.cat(list(logits))
    flat = rows.view(-1)
    biased = [each.biased for each in adjustments]
    if any(map(len, biased)):
        flat[_offsets(biased, rows)] += _numbers([each.biases for each in adjustments], rows)
    seen = [each.seen for each in adjustments]
    if any(map(len, seen)):
        offsets, penalties = _offsets(seen, rows), [each.repetition for each in adjustments]
        before, factors = flat[offsets], _numbers(_repeated(penalties, seen), rows)
        flat[offsets] = torch.where(before < 0, before * factors, before / factors)
    counted = [each.counted for each in adjustments]
    if any(map(len, counted)):
        frequencies = _repeated([each.frequency for each in adjustments], counted)
        presences = _repeated([each.presence for each in adjustments], counted)
        counts = [each.counts for each in adjustments]
        once, always, times = (_numbers(each, rows) for each in (frequencies, presences, counts))
        flat[_offsets(counted, rows)] -= times * once + always
    barred = [each.barred for each in adjustments]
    if any(map(len, barred)):
        flat.index_fill_(0, _offsets(barred, rows), -torch.inf)
    if any(each.allowed is not None for each in adjustments):
        everything = np.ones(rows.shape[-1], np.bool_)
        allowed = [everything if each.allowed is None else each.allowed for each in adjustments]
        rows.masked_fill_(~upload(np.stack(allowed), rows.device), -torch.inf)
    return rows


def _offsets(ids: Sequence[Ids], rows: torch.Tensor) -> torch.Tensor:
    """Return the indices of all listed tokens in the flattened logits, row by row."""
    rows_begin = range(0, rows.numel(), rows.shape[-1])
    offsets = [begin + each for begin, each in zip(rows_begin, ids, strict=True)]
    return upload(np.concatenate(offsets), rows.device)


def _repeated(numbers: Sequence[float], ids: Sequence[Ids]) -> list[Numbers]:
    """For each row, repeat the row's value in `numbers` once per token of the row."""
    return [np.full(len(each), number) for number, each in zip(numbers, ids, strict=True)]


def _numbers(parts: Sequence[npt.NDArray[Any]], rows: torch.Tensor) -> torch.Tensor:
    """Concatenate arrays of numbers, one per row, into a tensor with the rows' dtype and device."""
    return upload(np.concatenate(parts), rows.device).to(rows.dtype)
