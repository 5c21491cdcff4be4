"""Passes over many sessions by llama.cpp: segments in, logits out
(`engine.model_runner.ModelRunner`).

All sessions share one cache, so the order of additions depends on who else is in it: never exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.forward.segment import Segment
from tandem.engine.gguf.cells import CellCache
from tandem.engine.gguf.feeding import SegmentDecode
from tandem.engine.gguf.llama import SEQUENCES, BatchRow
from tandem.engine.gguf.sequences import SequenceMemory, Sequences
from tandem.engine.model_runner import LoadedModel


class Decoder(SequenceMemory, Protocol):
    """A memory, and what writes to it (`engine.gguf.llama.LlamaContext`)."""

    def decode(self, rows: Sequence[BatchRow]) -> npt.NDArray[np.float32]:
        """Feed rows; logits of the wanted ones, [wanted, vocab]."""


class GGUFRunner:
    """A model, and what decodes for it with so many `sequences` and memory for `positions` cached
    tokens.
    """

    problem: str | None = None
    backend = batch_variant = "llama.cpp"

    def __init__(
        self,
        model: LoadedModel,
        decoder: Decoder,
        positions: int,
        exact: bool = False,
        sequences: int = SEQUENCES,
    ) -> None:
        self.model = model
        self.exact = exact
        self._decoder = decoder
        self._sequences = Sequences(decoder, sequences)
        self.pool = CellCache(self._sequences, positions)
        self._steps = count(1)

    def give_up_exactness(self) -> bool:
        """It was never exact."""
        self.exact = False
        return False

    def capture_passes(self) -> int:
        """There is nothing to prepare."""
        return 0

    def wait(self) -> None:
        """A pass is over when it returns."""

    def __call__(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed all segments; float32 logits per segment, [wanted, vocab].

        Where the model overflowed they are NaN. That is in all rows then, because masked keys are
        multiplied by zero: the cache is cleared, and the other segments are fed again, each alone.
        """
        try:
            logits, overflowed = self._feed(segments)
        except RuntimeError:
            self._sequences.forget()  # the cache is in an unknown state
            raise
        if not overflowed:
            return logits
        self._sequences.forget()
        if len(segments) > 1:
            return [self([segment])[0] for segment in segments]
        self.pool.content(segments[0].table).finite = False
        return [torch.full_like(each, torch.nan) for each in logits]

    def _feed(self, segments: Sequence[Segment]) -> tuple[list[torch.Tensor], bool]:
        """The logits, and whether some are no numbers; in several decodes if there are not enough
        sequences for all leaves at once.
        """
        step = next(self._steps)
        feedings = [
            SegmentDecode(self._sequences, self.pool.content(segment.table), segment, step)
            for segment in segments
        ]
        while left := [feeding for feeding in feedings if feeding.left]:
            pinned: set[int] = set()
            shares = [feeding.rows(pinned) for feeding in left]
            logits = self._decoder.decode([row for share in shares for row in share])
            if np.isnan(logits[:, 0]).any():
                break
            ends = np.cumsum([sum(row.wanted for row in share) for share in shares])
            for feeding, rows in zip(left, np.split(logits, ends[:-1]), strict=True):
                feeding.take(rows)
        nothing = np.empty((0, self.model.vocab_size), np.float32)
        if left:
            return [torch.empty(s.wanted, self.model.vocab_size) for s in segments], True
        answers = (feeding.answer() for feeding in feedings)
        return [torch.from_numpy(nothing if each is None else each) for each in answers], False
