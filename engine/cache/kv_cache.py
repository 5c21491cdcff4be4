"""The interface of the KV cache that sessions use."""

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
        """The number of positions in a page."""

    @property
    def positions(self) -> int:
        """The number of positions that fit into the memory if each has memory in all layers."""

    @property
    def footprint(self) -> Footprint:
        """The memory that a position takes."""

    @property
    def size(self) -> int:
        """The size of all memory."""

    @property
    def allocated(self) -> int:
        """The size of the memory that is not free."""

    @property
    def free(self) -> int:
        """The size of the memory that tables can still get."""

    @property
    def prefixes(self) -> Prefixes:
        """The texts that are cached for later sessions."""

    def parts(self, table: PageTable) -> Iterable[tuple[int, int, int]]:
        """Return the name of each part of a table's memory, how many tables have the part, and its
        size.
        """

    def allocate(self, length: int) -> PageTable | None:
        """Make a table with pages for `length` positions; None if too little memory is free."""

    def price(self, table: PageTable, length: int, narrow: bool = False) -> int:
        """Return the memory that a table still needs to have pages for `length` positions."""

    def grow(self, table: PageTable, length: int, narrow: bool = False) -> bool:
        """Give a table pages for `length` positions. Returns False, and changes nothing, if too
        little memory is free. If `narrow`, only as many of the new pages get memory in all layers
        as a session needs at once.
        """

    def trim(self, table: PageTable, length: int) -> None:
        """Take unused pages from a table of `length` positions: the first page after these
        positions that has no memory in layers with a window, and all pages after that page.
        """

    def release(self, table: PageTable, start: int = 0) -> None:
        """Take from a table its pages from the `start`-th on."""

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Copy the keys and values of positions `start` to `stop` from one table to another."""

    def compact(self, table: PageTable, start: int, path: Sequence[int]) -> None:
        """Move the positions `start + path[i]` to `start + i`. The content of later positions may
        no longer be used.
        """

    def finite(self, table: PageTable, start: int, stop: int) -> bool:
        """Return whether the keys and values of positions from `start` to `stop` are finite, which
        means that the model did not overflow there.
        """
