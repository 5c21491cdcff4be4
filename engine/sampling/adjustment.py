"""What options make of rows of logits before anything is drawn, for rows of many texts at once.

Says what a row gets, not why. The order is that of transformers: bias, penalties, suppressed
tokens, grammar. What is known of the rows is copied to their device for all of them at once, and
no copy is waited for.
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
    """Of one row: tokens and what they get, each token once. All tokens are in the vocabulary."""

    biased: Ids
    biases: Numbers
    seen: Ids  # their logits are divided by `repetition` if positive, else multiplied
    repetition: float
    counted: Ids  # their logits lose `presence`, and `frequency` each time that they occur
    counts: Ids
    presence: float
    frequency: float
    barred: Ids
    allowed: npt.NDArray[np.bool_] | None = None  # of all tokens, [vocab]


def adjust(logits: Sequence[torch.Tensor], adjustments: Sequence[Adjustment]) -> torch.Tensor:
    """The rows of all, each [rows, vocab], with an adjustment for each row: [all rows, vocab]."""
    rows = torch.cat(list(logits))
    flat = rows.view(-1)
    biased = [each.biased for each in adjustments]
    if any(map(len, biased)):
        flat[_places(biased, rows)] += _numbers([each.biases for each in adjustments], rows)
    seen = [each.seen for each in adjustments]
    if any(map(len, seen)):
        places, penalties = _places(seen, rows), [each.repetition for each in adjustments]
        before, factors = flat[places], _numbers(_repeated(penalties, seen), rows)
        flat[places] = torch.where(before < 0, before * factors, before / factors)
    counted = [each.counted for each in adjustments]
    if any(map(len, counted)):
        frequencies = _repeated([each.frequency for each in adjustments], counted)
        presences = _repeated([each.presence for each in adjustments], counted)
        counts = [each.counts for each in adjustments]
        once, always, times = (_numbers(each, rows) for each in (frequencies, presences, counts))
        flat[_places(counted, rows)] -= times * once + always
    barred = [each.barred for each in adjustments]
    if any(map(len, barred)):
        flat.index_fill_(0, _places(barred, rows), -torch.inf)
    if any(each.allowed is not None for each in adjustments):
        everything = np.ones(rows.shape[-1], np.bool_)
        allowed = [everything if each.allowed is None else each.allowed for each in adjustments]
        rows.masked_fill_(~upload(np.stack(allowed), rows.device), -torch.inf)
    return rows


def _places(ids: Sequence[Ids], rows: torch.Tensor) -> torch.Tensor:
    """Where the tokens of each row are, in all rows one after the other."""
    starts = range(0, rows.numel(), rows.shape[-1])
    places = [each + start for start, each in zip(starts, ids, strict=True)]
    return upload(np.concatenate(places), rows.device)


def _repeated(numbers: Sequence[float], ids: Sequence[Ids]) -> list[Numbers]:
    """The number of a row for each of its tokens."""
    return [np.full(len(each), number) for number, each in zip(numbers, ids, strict=True)]


def _numbers(parts: Sequence[npt.NDArray[Any]], rows: torch.Tensor) -> torch.Tensor:
    """What each token of each row gets, one after the other, of the rows' dtype."""
    return upload(np.concatenate(parts), rows.device).to(rows.dtype)
