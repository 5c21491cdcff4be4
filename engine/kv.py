"""Memory for keys and values: a bounded pool of positions, and rooms in it, one per session.

Owns memory, not meaning: which tokens a room holds is known to `sessions`. A room is one contiguous
stretch, so that attention reads it without a copy; it grows in place where it can and moves where
it cannot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

BLOCK = 64  # rooms are counted in blocks of this many positions


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
        self.taken = 0
        self._gaps = [Room(0, self.positions)]  # free stretches, in order

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

    def take(self, length: int) -> Room | None:
        """A room for `length` positions from the smallest gap that has them; None if none has."""
        capacity = _blocks(length)
        gap = _smallest(self._gaps, capacity)
        return gap and self._claim(Room(gap.start, 0), capacity)

    def fits(self, length: int, freed: Sequence[Room]) -> bool:
        """Whether there would be room for `length` positions without the rooms `freed`."""
        return _smallest(_joined([*self._gaps, *freed]), _blocks(length)) is not None

    def grow(self, room: Room, length: int) -> bool:
        """Make a room hold `length` positions, content kept; False, and unchanged, if it cannot. It
        grows where it is, or moves, perhaps to where it partly is.
        """
        capacity = _blocks(length)
        if capacity <= room.capacity:
            return True
        behind = next((gap for gap in self._gaps if gap.start == room.end), None)
        target = Room(room.start, 0)
        if not behind or room.capacity + behind.capacity < capacity:
            gaps = _joined([*self._gaps, room])
            ample = max(capacity, _blocks(room.capacity * 3 // 2))  # or it would move again soon
            gap = _smallest(gaps, ample) or _smallest(gaps, capacity)
            if gap is None:
                return False
            target.start, capacity = gap.start, min(gap.capacity, ample)
        old = Room(room.start, room.capacity)
        self._free(old)
        self._claim(target, capacity)
        room.start, room.capacity = target.start, target.capacity
        if room.start != old.start:
            self.copy(old, room, old.capacity)
        return True

    def give_back(self, room: Room) -> None:
        """Free a room; its content is dead but stays finite."""
        assert room.capacity, "a room is given back once"
        self._free(Room(room.start, room.capacity))
        room.capacity = 0

    def copy(self, source: Room, target: Room, count: int) -> None:
        """Copy the first `count` positions of one room to another, which may overlap it."""
        for store in (*self.keys, *self.values):
            rows = store[source.start : source.start + count].clone()
            store[target.start : target.start + count] = rows

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

    def wipe(self, room: Room) -> None:
        """Make a room's content finite again."""
        for store in (*self.keys, *self.values):
            store[room.start : room.end].zero_()

    def _claim(self, room: Room, capacity: int) -> Room:
        """Take `capacity` positions from the room's start on, which lie in a gap."""
        gap = next(gap for gap in self._gaps if gap.start <= room.start < gap.end)
        room.capacity = capacity
        rest = [Room(gap.start, room.start - gap.start), Room(room.end, gap.end - room.end)]
        kept = [other for other in self._gaps if other is not gap]
        self._gaps = _joined([*kept, *(part for part in rest if part.capacity)])
        self.taken += capacity
        return room

    def _free(self, room: Room) -> None:
        self.taken -= room.capacity
        self._gaps = _joined([*self._gaps, room])


def _smallest(gaps: Sequence[Room], capacity: int) -> Room | None:
    """The smallest gap that has `capacity` positions."""
    fitting = [gap for gap in gaps if gap.capacity >= capacity]
    return min(fitting, key=lambda gap: gap.capacity, default=None)


def _joined(rooms: Sequence[Room]) -> list[Room]:
    """The stretches that rooms cover, in order."""
    stretches: list[Room] = []
    for room in sorted(rooms, key=lambda room: room.start):
        if stretches and stretches[-1].end == room.start:
            stretches[-1].capacity += room.capacity
        else:
            stretches.append(Room(room.start, room.capacity))
    return stretches


def _blocks(length: int) -> int:
    return -(-max(length, 1) // BLOCK) * BLOCK


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU, pages that the system hands out when they are first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape)
