"""What sessions need of whatever holds their keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.cache.rooms import Room


class KVCache(Protocol):
    """A bounded number of cached positions, in rooms."""

    @property
    def positions(self) -> int:
        """All there are."""

    @property
    def taken(self) -> int:
        """Those in rooms."""

    @property
    def free(self) -> int:
        """Those that a room can still get."""

    def take(self, length: int) -> Room | None:
        """A room for `length` positions; None if there are not so many free."""

    def grow(self, room: Room, length: int) -> bool:
        """Make a room hold `length` positions, content kept; False if there are not so many."""

    def give_back(self, room: Room) -> None:
        """Free a room."""

    def copy(self, source: Room, target: Room, count: int) -> None:
        """Copy the first `count` positions of one room to another."""

    def compact(self, room: Room, start: int, path: Sequence[int]) -> None:
        """Move the positions `start + path[i]` to `start + i`; what lies behind those is dead."""

    def finite(self, room: Room, length: int) -> bool:
        """Whether the model did not overflow on a room's first positions."""

    def wipe(self, room: Room, start: int = 0) -> None:
        """Make a room's content harmless from `start` on."""
