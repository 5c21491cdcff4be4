"""Where rooms lie in a bounded stretch of positions: found, widened, moved out of each other's way.

Decides alone; what a room holds is copied by whoever has the memory. A room is one contiguous
stretch; it grows in place where it can and moves where it cannot. Rooms move only between steps, so
only `Room` objects know where they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import accumulate

BLOCK = 64  # rooms are counted in blocks of this many positions
SPARSE = 2  # times what a room takes: much room
DISTANCE = 512  # positions that a neighbour can grow by, at most, before somebody moves


@dataclass(slots=True, eq=False)
class Room:
    """`capacity` positions of the pool from `start` on."""

    start: int
    capacity: int

    @property
    def end(self) -> int:
        """The first position behind the room."""
        return self.start + self.capacity


class Rooms(ABC):
    """Rooms in `positions` positions, in order. Nothing fails half-way: without a place for what is
    asked for, nothing has changed.
    """

    def __init__(self, positions: int) -> None:
        self.positions = positions // BLOCK * BLOCK
        self._rooms: list[Room] = []

    @abstractmethod
    def _copy(self, source: int, target: int, count: int) -> None:
        """Copy what `count` positions hold to others, none of which is the same."""

    @property
    def taken(self) -> int:
        """Positions in rooms."""
        return sum(room.capacity for room in list(self._rooms))  # read by any thread

    @property
    def free(self) -> int:
        """Positions that a room can still get, wherever they lie."""
        return self.positions - self.taken

    def take(self, length: int) -> Room | None:
        """A room for `length` positions; None if there are not so many free."""
        capacity = blocks(length)
        if capacity > self.free:
            return None
        hole = self._hole(capacity)
        if hole is not None:
            room = Room(hole, capacity)
            self._insert(room)
        else:
            rooms = [Room(start, 0) for _, start in self._holes()]
            room = min(rooms, key=lambda room: self._way(room, capacity))
            self._insert(room)
            self._widen(room, capacity)
        return room

    def grow(self, room: Room, length: int) -> bool:
        """Make a room hold `length` positions, content kept; False, and unchanged, if there are not
        so many free. It grows where it is, or moves.
        """
        capacity = blocks(length)
        if capacity - room.capacity > self.free:
            return False
        behind = min((r.start for r in self._rooms if r.start > room.start), default=self.positions)
        if capacity <= max(room.capacity, behind - room.start):
            room.capacity = max(capacity, room.capacity)
            return True
        self._rooms.remove(room)
        ample = blocks(room.capacity * 3 // 2)  # or it would move again soon
        capacity = max(capacity, ample if self._hole(ample) is not None else 0)
        hole = self._hole(capacity)
        if hole is not None:
            self._move(room, hole)
            room.capacity = capacity
        self._insert(room)
        if hole is None:
            self._widen(room, capacity)
        return True

    def give_back(self, room: Room) -> None:
        """Free a room; its content is dead but stays finite."""
        assert room.capacity, "a room is given back once"
        self._rooms.remove(room)
        room.capacity = 0

    def _insert(self, room: Room) -> None:
        insort(self._rooms, room, key=lambda room: room.start)

    def _hole(self, capacity: int) -> int | None:
        """Where a room of that capacity can start: in the largest hole if there is much room, else
        in the smallest; not at its edge, so that neighbours can grow and nobody moves.
        """
        fitting = [hole for hole in self._holes() if hole[0] >= capacity]
        if not fitting:
            return None
        largest = max(fitting)
        size, start = largest if largest[0] >= SPARSE * capacity else min(fitting)
        distance = min((size - capacity) // 2, DISTANCE) // BLOCK * BLOCK
        return start + distance if start else 0

    def _holes(self) -> list[tuple[int, int]]:
        """What lies between rooms: length and start."""
        ends = [0, *(room.end for room in self._rooms)]
        starts = [*(room.start for room in self._rooms), self.positions]
        return [(start - end, end) for end, start in zip(ends, starts, strict=True) if start > end]

    def _widen(self, room: Room, capacity: int) -> None:
        """Give a room more capacity where it lies among others, which move away from it on both
        sides.
        """
        before, behind = self._neighbours(room)
        _, first, last = self._way(room, capacity)
        start = before[first].end if first < len(before) else 0
        for other in reversed(before[:first]):
            self._move(other, start)
            start = other.end
        end = behind[last].start if last < len(behind) else self.positions
        for other in reversed(behind[:last]):
            end -= other.capacity
            self._move(other, end)
        if room.start + capacity > end:
            self._move(room, start)
        room.capacity = capacity

    def _way(self, room: Room, capacity: int) -> tuple[int, int, int]:
        """How many positions move at least when a room becomes that large where it lies, since
        everybody waits; and how many neighbours on either side they belong to.
        """
        before, behind = self._neighbours(room)
        starts = [other.start for other in behind] + [self.positions]
        ends = [other.end for other in before] + [0]
        sizes = [[0, *accumulate(other.capacity for other in side)] for side in (before, behind)]
        left = [room.start - end - size for end, size in zip(ends, sizes[0], strict=True)]
        right = [start - room.end - size for start, size in zip(starts, sizes[1], strict=True)]
        ways = []
        for first, gained in enumerate(left):
            last = bisect_left(right, capacity - room.capacity - gained)
            if last < len(right):
                ways.append((sizes[0][first] + sizes[1][last], first, last))
        return min(ways)

    def _neighbours(self, room: Room) -> tuple[list[Room], list[Room]]:
        """Those before a room and those behind, the nearest first."""
        place = bisect_left(self._rooms, room.start, key=lambda other: other.start)
        before, behind = self._rooms[:place], self._rooms[place:]
        return before[::-1], [other for other in behind if other is not room]

    def _move(self, room: Room, start: int) -> None:
        """Move a room and its content to another place, which may overlap: in pieces that do not,
        so that no memory is needed for it and nothing can fail half-way.
        """
        distance = abs(start - room.start)
        pieces = range(0, room.capacity, distance) if distance else range(0)
        for offset in pieces if start < room.start else reversed(pieces):
            count = min(distance, room.capacity - offset)
            self._copy(room.start + offset, start + offset, count)
        room.start = start


def blocks(length: int) -> int:
    """Positions that a room for `length` of them takes."""
    return -(-max(length, 1) // BLOCK) * BLOCK
