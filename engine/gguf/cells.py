"""The cache of a GGUF model as rooms of a bounded number of positions.

A room counts positions; where they lie is llama.cpp's affair, so nothing ever has to move.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.cache.rooms import BLOCK, Room, blocks
from engine.gguf.sequences import Held, Sequences


class Cells:
    """At most `positions` of them are in rooms (`engine.port.KVCache`)."""

    def __init__(self, sequences: Sequences, positions: int) -> None:
        self.positions = positions // BLOCK * BLOCK
        self.sequences = sequences
        self._rooms: dict[Room, Held] = {}

    @property
    def taken(self) -> int:
        """Positions in rooms."""
        return sum(room.capacity for room in list(self._rooms))  # read by any thread

    @property
    def free(self) -> int:
        """Positions that a room can still get."""
        return self.positions - self.taken

    def held(self, room: Room) -> Held:
        """What a room holds."""
        return self._rooms[room]

    def take(self, length: int) -> Room | None:
        """A room for `length` positions; None if there are not so many free."""
        if blocks(length) > self.free:
            return None
        room = Room(0, blocks(length))
        self._rooms[room] = self.sequences.open()
        return room

    def grow(self, room: Room, length: int) -> bool:
        """Make a room hold `length` positions; False if there are not so many free."""
        if blocks(length) - room.capacity > self.free:
            return False
        room.capacity = max(room.capacity, blocks(length))
        return True

    def give_back(self, room: Room) -> None:
        """Free a room."""
        assert room.capacity, "a room is given back once"
        room.capacity = 0
        self.sequences.close(self._rooms.pop(room))

    def copy(self, source: Room, target: Room, count: int) -> None:
        """A room gets the first `count` positions of another: the same cells."""
        self.sequences.share(self.held(source), self.held(target), count)

    def compact(self, room: Room, start: int, path: Sequence[int]) -> None:
        """Move the positions `start + path[i]` to `start + i`; what lies behind those is dead."""
        self.sequences.moved(self.held(room), start, path)

    def finite(self, room: Room, length: int) -> bool:
        """Whether the model did not overflow."""
        return self.held(room).finite

    def wipe(self, room: Room, start: int = 0) -> None:
        """Forget a room's content from `start` on."""
        held = self.held(room)
        held.finite = True
        self.sequences.cut(held, start)
