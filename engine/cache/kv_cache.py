"""What sessions need of whatever holds their keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.prefixes import Prefixes


class KVCache(Protocol):
    """A bounded number of cached positions, in pages."""

    @property
    def page(self) -> int:
        """Positions of a page."""

    @property
    def positions(self) -> int:
        """All there are."""

    @property
    def allocated(self) -> int:
        """Those in pages that are not free."""

    @property
    def free(self) -> int:
        """Those that a table can still get."""

    @property
    def prefixes(self) -> Prefixes:
        """What is cached for sessions to come."""

    def holders(self, page: int) -> int:
        """How many sessions hold a page."""

    def allocate(self, length: int) -> PageTable | None:
        """Pages for `length` positions; None if there are not so many free."""

    def grow(self, table: PageTable, length: int) -> bool:
        """Give a table pages for `length` positions; False, and unchanged, if there are not so many
        free.
        """

    def release(self, table: PageTable, start: int = 0) -> None:
        """Take from a table its pages from the `start`-th on."""

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Copy the positions from `start` to `stop` of one table to another."""

    def compact(self, table: PageTable, start: int, path: Sequence[int]) -> None:
        """Move the positions `start + path[i]` to `start + i`; what lies after those is dead."""

    def finite(self, table: PageTable, start: int, stop: int) -> bool:
        """Whether the model did not overflow on a table's positions from `start` to `stop`."""

    def wipe(self, table: PageTable, start: int = 0) -> None:
        """Make a table's content harmless from `start` on: no later row may be spoilt by it."""
