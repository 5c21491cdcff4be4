"""What sessions need of whatever holds their keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.engine.cache.ranges import KVRange


class KVCache(Protocol):
    """A bounded number of cached positions, in KV ranges."""

    @property
    def positions(self) -> int:
        """All there are."""

    @property
    def allocated(self) -> int:
        """Those in KV ranges."""

    @property
    def free(self) -> int:
        """Those that a KV range can still get."""

    def allocate(self, length: int) -> KVRange | None:
        """A KV range for `length` positions; None if there are not so many free."""

    def grow(self, kv_range: KVRange, length: int) -> bool:
        """Make a KV range hold `length` positions, content kept; False if there are not so
        many.
        """

    def release(self, kv_range: KVRange) -> None:
        """Free a KV range."""

    def copy(self, source: KVRange, target: KVRange, count: int) -> None:
        """Copy the first `count` positions of one KV range to another."""

    def compact(self, kv_range: KVRange, start: int, path: Sequence[int]) -> None:
        """Move the positions `start + path[i]` to `start + i`; what lies after those is dead."""

    def finite(self, kv_range: KVRange, length: int) -> bool:
        """Whether the model did not overflow on a KV range's first positions."""

    def wipe(self, kv_range: KVRange, start: int = 0) -> None:
        """Make a KV range's content harmless from `start` on: no later row may be spoilt by it."""
