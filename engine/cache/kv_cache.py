"""What sessions need of whatever holds their keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tandem.engine.cache.footprint import Footprint
from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.prefixes import Prefixes


class KVCache(Protocol):
    """Bounded memory for cached positions, in pages. Sizes are in the units of `footprint`."""

    @property
    def page(self) -> int:
        """Positions of a page."""

    @property
    def positions(self) -> int:
        """How many there are, if all have memory in all layers."""

    @property
    def footprint(self) -> Footprint:
        """What each takes."""

    @property
    def size(self) -> int:
        """The memory of all."""

    @property
    def allocated(self) -> int:
        """What of it is not free."""

    @property
    def free(self) -> int:
        """What tables can still get."""

    @property
    def prefixes(self) -> Prefixes:
        """What is cached for sessions to come."""

    def parts(self, table: PageTable) -> Iterable[tuple[int, int, int]]:
        """What a table has: the name of each part, how many tables have it, and its size."""

    def allocate(self, length: int) -> PageTable | None:
        """Pages for `length` positions; None if there is too little free."""

    def price(self, table: PageTable, length: int, narrow: bool = False) -> int:
        """What a table would take to have pages for `length` positions."""

    def grow(self, table: PageTable, length: int, narrow: bool = False) -> bool:
        """Give a table pages for `length` positions; False, and unchanged, if there is too little
        free. If `narrow`, no more of them have memory in all layers at once than a session needs.
        """

    def trim(self, table: PageTable, length: int) -> None:
        """Take from a table with `length` positions the pages behind them, if some are bare."""

    def release(self, table: PageTable, start: int = 0) -> None:
        """Take from a table its pages from the `start`-th on."""

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Copy the positions from `start` to `stop` of one table to another."""

    def compact(self, table: PageTable, start: int, path: Sequence[int]) -> None:
        """Move the positions `start + path[i]` to `start + i`; what lies after those is dead."""

    def finite(self, table: PageTable, start: int, stop: int) -> bool:
        """Whether the model did not overflow on a table's positions from `start` to `stop`."""
