"""Memory for keys and values: a bounded pool of positions, and rooms in it, one per session.

Owns memory, not meaning: which tokens a room holds is known to `sessions`. A room is one contiguous
stretch, so that attention reads it without a copy; it grows in place where it can and moves where
it cannot. Rooms move only between steps, so only `Room` objects know where they are.
"""

from __future__ import annotations

import mmap
from bisect import insort
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TypeAlias

import torch

BLOCK = 64  # rooms are counted in blocks of this many positions
SPARSE = 2  # times what a room takes: much room
DISTANCE = 512  # positions that a neighbour can grow by, at most, before somebody moves

Index: TypeAlias = slice | torch.Tensor  # numbers of rows; those side by side cost less as a slice


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """What one attention layer stores per token."""

    heads: int
    key_size: int
    value_size: int


@dataclass(slots=True, eq=False)
class Room:
    """`capacity` positions of the pool from `start` on."""

    start: int
    capacity: int

    @property
    def end(self) -> int:
        """The first position behind the room."""
        return self.start + self.capacity


def position_bytes(layers: Sequence[LayerGeometry], dtype: torch.dtype) -> int:
    """Bytes that one cached token takes in all layers."""
    return dtype.itemsize * sum(la.heads * (la.key_size + la.value_size) for la in layers)


class Pool:
    """Positions in every layer, [positions, heads, size] each; untouched ones cost no memory.
    `spare` more lie behind them, for rows that nobody asked for.

    Must not hold NaN: masked keys are multiplied by zero, not skipped.
    """

    def __init__(
        self,
        layers: Sequence[LayerGeometry],
        positions: int,
        dtype: torch.dtype,
        device: torch.device,
        spare: int = 0,
    ) -> None:
        self.positions = positions // BLOCK * BLOCK
        self._rooms: list[Room] = []  # in order

        keys = [(layer.heads, layer.key_size) for layer in layers]
        values = [(layer.heads, layer.value_size) for layer in layers]
        rows = self.positions + spare
        stacks = {
            shape: _zeros((count, rows, *shape), dtype, device)
            for shape, count in Counter(keys + values).items()
        }
        left = {shape: iter(stack.unbind()) for shape, stack in stacks.items()}
        self.keys = [next(left[shape]) for shape in keys]
        self.values = [next(left[shape]) for shape in values]
        self._stacks = list(stacks.values())  # the same, [stores, positions, heads, size]

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
        return self._place(Room(0, capacity))

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
        held = replace(room)
        ample = blocks(room.capacity * 3 // 2)  # or it would move again soon
        roomy = any(size >= ample for size, _ in self._holes())
        room.capacity = max(capacity, ample if roomy else 0)
        if self._hole(room.capacity) is None:  # others will be moved over it
            content = [stack[:, held.start : held.end].clone() for stack in self._stacks]
            self._place(room)
            for stack, rows in zip(self._stacks, content, strict=True):
                stack[:, room.start : room.start + held.capacity] = rows
        else:
            self._move(held, self._place(room).start)
        return True

    def give_back(self, room: Room) -> None:
        """Free a room; its content is dead but stays finite."""
        assert room.capacity, "a room is given back once"
        self._rooms.remove(room)
        room.capacity = 0

    def copy(self, source: Room, target: Room, count: int) -> None:
        """Copy the first `count` positions of one room to another."""
        for stack in self._stacks:
            rows = stack[:, source.start : source.start + count]
            stack[:, target.start : target.start + count] = rows

    def compact(self, room: Room, start: int, path: Sequence[int]) -> None:
        """Move the positions `start + path[i]` to `start + i` in every layer."""
        moves = [(node, place) for place, node in enumerate(path) if node != place]
        if not moves:
            return
        first, device = room.start + start, self.keys[0].device
        source = torch.tensor([first + node for node, _ in moves], device=device)
        target = torch.tensor([first + place for _, place in moves], device=device)
        for stack in self._stacks:
            stack.index_copy_(1, target, stack.index_select(1, source))  # first a copy

    def wipe(self, room: Room, start: int = 0) -> None:
        """Make a room's content finite again, from `start` on."""
        for stack in self._stacks:
            stack[:, room.start + start : room.end].zero_()

    def _place(self, room: Room) -> Room:
        """Lay a room into a hole; if none has its capacity, into the one that is left when all
        other rooms have moved together.
        """
        hole = self._hole(room.capacity)
        room.start = self._moved_together() if hole is None else hole
        insort(self._rooms, room, key=lambda room: room.start)
        return room

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

    def _moved_together(self) -> int:
        """Close all holes; returns the end of the last room."""
        end = 0
        for room in self._rooms:
            if room.start > end:
                self._move(room, end)
                room.start = end
            end = room.end
        return end

    def _move(self, room: Room, start: int) -> None:
        """Copy a room's content to another place, which may overlap: a layer at a time, since new
        memory for all of them takes longer to get than to fill.
        """
        for stack in self._stacks:
            for layer in stack:
                layer[start : start + room.capacity] = layer[room.start : room.end].clone()


def index(numbers: Sequence[int], device: torch.device) -> Index:
    """The shortest way to say these numbers."""
    if numbers and all(later == number + 1 for number, later in pairwise(numbers)):
        return slice(numbers[0], numbers[-1] + 1)
    return torch.tensor(numbers, dtype=torch.long, device=device)


def store(layer: torch.Tensor, places: Index, new: torch.Tensor, rows: Index) -> None:
    """Write some rows of `new`, [rows, heads, size], to places in a layer's keys or values."""
    chosen = new[rows] if isinstance(rows, slice) else new.index_select(0, rows)
    if isinstance(places, slice):
        layer[places] = chosen
    else:
        layer.index_copy_(0, places, chosen)


def blocks(length: int) -> int:
    """Positions that a room for `length` of them takes."""
    return -(-max(length, 1) // BLOCK) * BLOCK


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU, pages that the system hands out when they are first written. Small pages: a
    new session touches as many of the large ones as there are layers, while everybody waits.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = prod(shape)
    size = max(1, count * dtype.itemsize)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes") from error
    with suppress(OSError, AttributeError):  # a system that has no others
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return (
        torch.frombuffer(pages, dtype=torch.uint8)[: count * dtype.itemsize].view(dtype).view(shape)
    )
