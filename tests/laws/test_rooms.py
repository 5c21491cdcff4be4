"""Rooms that are in each other's way: as little as possible is moved, with no memory for it, and
nothing is lost.
"""

from __future__ import annotations

import pytest

from engine.cache.rooms import BLOCK, Room, Rooms


class Numbers(Rooms):
    """Positions that each hold a number, and how many were copied."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks * BLOCK)
        self.held = [0] * self.positions
        self.copied = 0

    def _copy(self, source: int, target: int, count: int) -> None:
        assert abs(source - target) >= count, "a copy onto itself"
        self.held[target : target + count] = self.held[source : source + count]
        self.copied += count

    def lay(self, *places: tuple[int, int]) -> list[Room]:
        """Rooms at blocks, of so many blocks, filled with numbers of their own."""
        self._rooms += (rooms := [Room(start * BLOCK, size * BLOCK) for start, size in places])
        for number, room in enumerate(rooms, start=1):
            first = number * 10_000
            self.held[room.start : room.end] = range(first, first + room.capacity)
        return rooms

    def check(self, rooms: list[Room], sizes: list[int]) -> None:
        """All rooms still hold what they held."""
        for number, (room, size) in enumerate(zip(rooms, sizes, strict=True), start=1):
            first = number * 10_000
            assert self.held[room.start : room.start + size] == [*range(first, first + size)]


# blocks:   0 . 2 2 . . 6 . . 9 9 9 9 9 9 9 . 17 .
PLACES = ((0, 1), (2, 2), (6, 1), (9, 7), (17, 1))
BLOCKS = 19


@pytest.mark.parametrize(
    ("wanted", "moved"),
    [(2, 0), (3, 1), (4, 1), (5, 3), (6, 9)],
    ids=["a hole", "of 2 + 2", "of all of 2 + 2", "of 1 + 2 + 2", "of 2 + 2 + 1 + 1"],
)
def test_who_makes_way_for_a_new_room_are_the_smallest_neighbours(wanted: int, moved: int) -> None:
    numbers = Numbers(BLOCKS)
    rooms = numbers.lay(*PLACES)
    sizes = [room.capacity for room in rooms]
    new = numbers.take(wanted * BLOCK)
    assert new is not None and new.capacity == wanted * BLOCK
    assert numbers.copied == moved * BLOCK
    numbers.check(rooms, sizes)


def test_wherever_the_smallest_room_lies_it_makes_way() -> None:
    """Not beside the largest hole here."""
    numbers = Numbers(41)
    rooms = numbers.lay((0, 10), (14, 10), (27, 1), (31, 10))
    assert numbers.take(6 * BLOCK)
    assert numbers.copied == BLOCK
    numbers.check(rooms, [room.capacity for room in rooms])


@pytest.mark.parametrize("which", range(len(PLACES)))
def test_a_room_grows_into_all_that_is_left_and_loses_nothing(which: int) -> None:
    numbers = Numbers(BLOCKS)
    rooms = numbers.lay(*PLACES)
    sizes = [room.capacity for room in rooms]
    assert numbers.grow(rooms[which], numbers.free + sizes[which])
    assert numbers.free == 0
    numbers.check(rooms, sizes)


def test_a_room_that_cannot_grow_as_wanted_stays_as_it_is() -> None:
    numbers = Numbers(BLOCKS)
    rooms = numbers.lay(*PLACES)
    before = [(room.start, room.capacity) for room in rooms]
    assert not numbers.grow(rooms[1], numbers.free + rooms[1].capacity + 1)
    assert [(room.start, room.capacity) for room in rooms] == before
    assert not numbers.copied
