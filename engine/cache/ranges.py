"""Where KV ranges lie in a bounded stretch of positions: found, grown and moved.

Decides alone; what a KV range holds is copied by the subclass that has the memory. A KV range is
one contiguous stretch; it grows in place where it can and moves where it cannot. KV ranges move
only between steps, so only `KVRange` objects know where they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate

BLOCK = 64  # KV ranges are counted in blocks of this many positions
SPARSE = 2  # times what a KV range takes: much space
DISTANCE = 512  # positions that a neighbour can grow by, at most, before ranges are moved


@dataclass(slots=True, eq=False)
class KVRange:
    """`capacity` positions of the pool from `start` on."""

    start: int
    capacity: int

    @property
    def end(self) -> int:
        """The first position after the KV range."""
        return self.start + self.capacity


class RangeCapacity:
    """A bounded number of positions, whole blocks; `kv_ranges` is what is allocated now."""

    def __init__(self, positions: int, kv_ranges: Collection[KVRange]) -> None:
        self.positions = positions // BLOCK * BLOCK
        self._in_use = kv_ranges

    @property
    def allocated(self) -> int:
        """Positions in ranges."""
        return sum(kv_range.capacity for kv_range in list(self._in_use))  # read by any thread

    @property
    def free(self) -> int:
        """Positions that a range can still get, wherever they lie."""
        return self.positions - self.allocated


class RangeAllocator(RangeCapacity, ABC):
    """KV ranges in `positions` positions, in order. Nothing fails half-way: without a place for
    what is asked for, nothing has changed.
    """

    def __init__(self, positions: int) -> None:
        self._kv_ranges: list[KVRange] = []
        super().__init__(positions, self._kv_ranges)

    @abstractmethod
    def _copy(self, source: int, target: int, count: int) -> None:
        """Copy what `count` positions hold to others, none of which is the same."""

    def allocate(self, length: int) -> KVRange | None:
        """A KV range for `length` positions; None if there are not so many free."""
        capacity = block_aligned(length)
        if capacity > self.free:
            return None
        hole = self._hole(capacity)
        if hole is not None:
            kv_range = KVRange(hole, capacity)
            self._insert(kv_range)
        else:
            kv_ranges = [KVRange(start, 0) for _, start in self._holes()]
            kv_range = min(kv_ranges, key=lambda kv_range: self._way(kv_range, capacity))
            self._insert(kv_range)
            self._widen(kv_range, capacity)
        return kv_range

    def grow(self, kv_range: KVRange, length: int) -> bool:
        """Make a KV range hold `length` positions, content kept; False, and unchanged, if
        there are not so many free. It grows where it is, or moves.
        """
        capacity = block_aligned(length)
        if capacity - kv_range.capacity > self.free:
            return False
        behind = min(
            (r.start for r in self._kv_ranges if r.start > kv_range.start), default=self.positions
        )
        if capacity <= max(kv_range.capacity, behind - kv_range.start):
            kv_range.capacity = max(capacity, kv_range.capacity)
            return True
        self._kv_ranges.remove(kv_range)
        ample = block_aligned(kv_range.capacity * 3 // 2)  # or it would move again soon
        capacity = max(capacity, ample if self._hole(ample) is not None else 0)
        hole = self._hole(capacity)
        if hole is not None:
            self._move(kv_range, hole)
            kv_range.capacity = capacity
        self._insert(kv_range)
        if hole is None:
            self._widen(kv_range, capacity)
        return True

    def release(self, kv_range: KVRange) -> None:
        """Free a KV range; its content is dead."""
        assert kv_range.capacity, "a KV range is given back once"
        self._kv_ranges.remove(kv_range)
        kv_range.capacity = 0

    def _insert(self, kv_range: KVRange) -> None:
        insort(self._kv_ranges, kv_range, key=lambda kv_range: kv_range.start)

    def _hole(self, capacity: int) -> int | None:
        """Where a KV range of that capacity can start: in the largest hole if there is much space,
        else in the smallest; not at its edge, so that neighbours can grow and none is moved.
        """
        fitting = [hole for hole in self._holes() if hole[0] >= capacity]
        if not fitting:
            return None
        largest = max(fitting)
        size, start = largest if largest[0] >= SPARSE * capacity else min(fitting)
        distance = min((size - capacity) // 2, DISTANCE) // BLOCK * BLOCK
        return start + distance if start else 0

    def _holes(self) -> list[tuple[int, int]]:
        """What lies between KV ranges: length and start."""
        ends = [0, *(kv_range.end for kv_range in self._kv_ranges)]
        starts = [*(kv_range.start for kv_range in self._kv_ranges), self.positions]
        return [(start - end, end) for end, start in zip(ends, starts, strict=True) if start > end]

    def _widen(self, kv_range: KVRange, capacity: int) -> None:
        """Give a KV range more capacity where it lies among others, which move away from it on both
        sides.
        """
        before, behind = self._neighbours(kv_range)
        _, first, last = self._way(kv_range, capacity)
        start = before[first].end if first < len(before) else 0
        for other in reversed(before[:first]):
            self._move(other, start)
            start = other.end
        end = behind[last].start if last < len(behind) else self.positions
        for other in reversed(behind[:last]):
            end -= other.capacity
            self._move(other, end)
        if kv_range.start + capacity > end:
            self._move(kv_range, start)
        kv_range.capacity = capacity

    def _way(self, kv_range: KVRange, capacity: int) -> tuple[int, int, int]:
        """How many positions move at least when a KV range becomes that large where it lies, since
        all sessions wait; and how many neighbours on either side they belong to.
        """
        before, behind = self._neighbours(kv_range)
        starts = [other.start for other in behind] + [self.positions]
        ends = [other.end for other in before] + [0]
        sizes = [[0, *accumulate(other.capacity for other in side)] for side in (before, behind)]
        left = [kv_range.start - end - size for end, size in zip(ends, sizes[0], strict=True)]
        right = [start - kv_range.end - size for start, size in zip(starts, sizes[1], strict=True)]
        ways = []
        for first, gained in enumerate(left):
            last = bisect_left(right, capacity - kv_range.capacity - gained)
            if last < len(right):
                ways.append((sizes[0][first] + sizes[1][last], first, last))
        return min(ways)

    def _neighbours(self, kv_range: KVRange) -> tuple[list[KVRange], list[KVRange]]:
        """Those before a KV range and those after, the nearest first."""
        place = bisect_left(self._kv_ranges, kv_range.start, key=lambda other: other.start)
        before, behind = self._kv_ranges[:place], self._kv_ranges[place:]
        return before[::-1], [other for other in behind if other is not kv_range]

    def _move(self, kv_range: KVRange, start: int) -> None:
        """Move a KV range and its content to another place, which may overlap: in pieces that do
        not, so that no memory is needed for it and nothing can fail half-way.
        """
        distance = abs(start - kv_range.start)
        pieces = range(0, kv_range.capacity, distance) if distance else range(0)
        for offset in pieces if start < kv_range.start else reversed(pieces):
            count = min(distance, kv_range.capacity - offset)
            self._copy(kv_range.start + offset, start + offset, count)
        kv_range.start = start


def block_aligned(length: int) -> int:
    """Positions that a KV range for `length` of them takes."""
    return -(-max(length, 1) // BLOCK) * BLOCK
