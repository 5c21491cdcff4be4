"""KV ranges that are in each other's way: as little as possible is moved, with no memory for it,
and nothing is lost.
"""

from __future__ import annotations

import pytest

from tandem.engine.cache.ranges import BLOCK, KVRange, RangeAllocator


class Numbers(RangeAllocator):
    """Positions that each hold a number, and how many were copied."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks * BLOCK)
        self.held = [0] * self.positions
        self.copied = 0

    def _copy(self, source: int, target: int, count: int) -> None:
        assert abs(source - target) >= count, "a copy onto itself"
        self.held[target : target + count] = self.held[source : source + count]
        self.copied += count

    def lay(self, *places: tuple[int, int]) -> list[KVRange]:
        """KV ranges at blocks, of so many blocks, filled with numbers of their own."""
        self._kv_ranges += (
            kv_ranges := [KVRange(start * BLOCK, size * BLOCK) for start, size in places]
        )
        for number, kv_range in enumerate(kv_ranges, start=1):
            first = number * 10_000
            self.held[kv_range.start : kv_range.end] = range(first, first + kv_range.capacity)
        return kv_ranges

    def check(self, kv_ranges: list[KVRange], sizes: list[int]) -> None:
        """All KV ranges still hold what they held."""
        for number, (kv_range, size) in enumerate(zip(kv_ranges, sizes, strict=True), start=1):
            first = number * 10_000
            assert self.held[kv_range.start : kv_range.start + size] == [
                *range(first, first + size)
            ]


# blocks:   0 . 2 2 . . 6 . . 9 9 9 9 9 9 9 . 17 .
PLACES = ((0, 1), (2, 2), (6, 1), (9, 7), (17, 1))
BLOCKS = 19


@pytest.mark.parametrize(
    ("wanted", "moved"),
    [(2, 0), (3, 1), (4, 1), (5, 3), (6, 9)],
    ids=["a hole", "of 2 + 2", "of all of 2 + 2", "of 1 + 2 + 2", "of 2 + 2 + 1 + 1"],
)
def test_who_makes_way_for_a_new_range_are_the_smallest_neighbours(wanted: int, moved: int) -> None:
    numbers = Numbers(BLOCKS)
    kv_ranges = numbers.lay(*PLACES)
    sizes = [kv_range.capacity for kv_range in kv_ranges]
    new = numbers.allocate(wanted * BLOCK)
    assert new is not None and new.capacity == wanted * BLOCK
    assert numbers.copied == moved * BLOCK
    numbers.check(kv_ranges, sizes)


def test_wherever_the_smallest_range_lies_it_makes_way() -> None:
    """Not beside the largest hole here."""
    numbers = Numbers(41)
    kv_ranges = numbers.lay((0, 10), (14, 10), (27, 1), (31, 10))
    assert numbers.allocate(6 * BLOCK)
    assert numbers.copied == BLOCK
    numbers.check(kv_ranges, [kv_range.capacity for kv_range in kv_ranges])


@pytest.mark.parametrize("which", range(len(PLACES)))
def test_a_range_grows_into_all_that_is_left_and_loses_nothing(which: int) -> None:
    numbers = Numbers(BLOCKS)
    kv_ranges = numbers.lay(*PLACES)
    sizes = [kv_range.capacity for kv_range in kv_ranges]
    assert numbers.grow(kv_ranges[which], numbers.free + sizes[which])
    assert numbers.free == 0
    numbers.check(kv_ranges, sizes)
