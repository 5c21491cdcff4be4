"""What one sequence holds: a path through the places of a KV range, from the start of its text.

Pure. A path nearly always begins with places 0, 1, 2, ..., which are counted and not listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile


@dataclass(frozen=True, slots=True)
class SequencePath:
    """Places `0 .. trunk - 1`, then those of `branch`; the n-th lies at position n."""

    trunk: int = 0
    branch: tuple[int, ...] = ()

    @staticmethod
    def of(trunk: int, branch: Sequence[int]) -> SequencePath:
        """The one way to write a path."""
        straight = next((n for n, place in enumerate(branch) if place != trunk + n), len(branch))
        return SequencePath(trunk + straight, tuple(branch[straight:]))

    def __len__(self) -> int:
        return self.trunk + len(self.branch)

    def __getitem__(self, position: int) -> int:
        return position if position < self.trunk else self.branch[position - self.trunk]

    def after(self, start: int) -> Sequence[int]:
        """The places from position `start` on."""
        if start >= self.trunk:
            return self.branch[start - self.trunk :]
        return [*range(start, self.trunk), *self.branch]

    def first(self, count: int) -> SequencePath:
        """The first positions."""
        return SequencePath(min(self.trunk, count), self.branch[: max(0, count - self.trunk)])

    def is_prefix_of(self, other: SequencePath) -> bool:
        """Whether it is a prefix of another, or all of it."""
        return len(self) <= len(other) and other.first(len(self)) == self

    def below(self, stop: int) -> SequencePath:
        """The same up to the first place that is not below `stop`."""
        kept = takewhile(lambda place: place < stop, self.branch)
        return SequencePath(stop) if self.trunk > stop else SequencePath(self.trunk, tuple(kept))

    def moved(self, start: int, places: dict[int, int]) -> SequencePath:
        """The same where places from `start` on are others now, up to the first that is none."""
        if self.trunk < start:
            return SequencePath(self.trunk)
        alive = list(takewhile(places.__contains__, self.after(start)))
        return SequencePath.of(start, [places[place] for place in alive])
