"""A model of llama.cpp's cache: cells that belong to sequences, and decodes that are refused where
`llama_batch_allocr` refuses them. The logits of a row are the tokens that it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.engine.gguf.llama import BatchRow
from tandem.engine.gguf.runner import GGUFRunner

WIDTH = 48  # tokens of the longest text
BAD = 666  # a token that the model overflows on


@dataclass
class Cell:
    """A token at a position, and whose it is."""

    token: int
    position: int
    sequences: set[int]


@dataclass
class Decoder:
    """At most `size` cells."""

    size: int
    cells: list[Cell] = field(default_factory=list)
    poisoned: bool = False
    decodes: int = 0
    fed: int = 0

    def of(self, sequence: int) -> list[Cell]:
        """What a sequence holds, in order."""
        own = [cell for cell in self.cells if sequence in cell.sequences]
        return sorted(own, key=lambda cell: cell.position)

    def decode(self, rows: Sequence[BatchRow]) -> npt.NDArray[np.float32]:
        """What the wanted rows see, [wanted, WIDTH]."""
        assert rows
        self.decodes, self.fed = self.decodes + 1, self.fed + len(rows)
        self._check(rows)
        assert len(self.cells) + len(rows) <= self.size, "no cells left"
        self.cells += [Cell(row.token, row.position, set(row.sequences)) for row in rows]
        self.poisoned |= any(row.token == BAD for row in rows)
        seen = np.zeros((sum(row.wanted for row in rows), WIDTH), np.float32)
        for number, row in enumerate(row for row in rows if row.wanted):
            path = [cell for cell in self.of(row.sequences[0]) if cell.position <= row.position]
            assert [cell.position for cell in path] == list(range(row.position + 1))
            seen[number, : len(path)] = [cell.token for cell in path]
        return np.full_like(seen, np.nan) if self.poisoned else seen

    def _check(self, rows: Sequence[BatchRow]) -> None:
        ends = {}
        for name in {name for row in rows for name in row.sequences}:
            held = self.of(name)
            ends[name] = len(held)
            fed = [row.position for row in rows if name in row.sequences]
            assert fed == list(range(len(held), len(held) + len(fed))), "positions go on"
        for row in rows:
            assert len({ends[name] for name in row.sequences}) == 1, "coupled but diverged"
            assert len(set(row.sequences)) == len(row.sequences)

    def remove(self, sequence: int, start: int) -> None:
        """A sequence ends before a position."""
        for cell in self.cells:
            if cell.position >= start:
                cell.sequences.discard(sequence)
        self.cells = [cell for cell in self.cells if cell.sequences]

    def copy(self, source: int, target: int, stop: int) -> None:
        """An empty sequence shares cells with another."""
        assert not self.of(target)
        for cell in self.of(source)[:stop]:
            cell.sequences.add(target)

    def clear(self) -> None:
        """All is gone."""
        self.cells, self.poisoned = [], False


def running(positions: int, sequences: int) -> tuple[GGUFRunner, Decoder]:
    """A runner of such a cache."""
    facts: Any = SimpleNamespace(vocab_size=WIDTH)
    decoder = Decoder(positions)
    return GGUFRunner(facts, decoder, positions, sequences=sequences), decoder
