"""The interface of the KV cache in which sessions keep their keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tandem.engine.cache.footprint import Footprint
from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.prefixes import Prefixes


class KVCache(Protocol):
    """A paged KV cache with a fixed amount of memory. All memory sizes are in the units that
    `footprint` defines.
    """

    @property
    def page(self) -> int:
        """The number of positions in a page."""

    @property
    def positions(self) -> int:
        """The number of positions that fit into the memory if every position has memory in all
        layers.
        """

    @property
    def footprint(self) -> Footprint:
        """The memory that a cached position takes in full-attention and in sliding-window
        layers.
        """

    @property
    def size(self) -> int:
        """The total size of the cache's memory."""

    @property
    def allocated(self) -> int:
        """The size of the memory that is in use, by sessions or by cached prefixes."""

    @property
    def free(self) -> int:
        """The size of the memory that is free to be allocated."""

    @property
    def prefixes(self) -> Prefixes:
        """The prefixes that are cached for later sessions."""

    def parts(self, table: PageTable) -> Iterable[tuple[int, int, int]]:
        """Return, for each part of a page table's memory, the part's identifier, the number of
        tables that share it, and its size.
        """

    def allocate(self, length: int) -> PageTable | None:
        """Create a page table for `length` positions; return None if too little memory is free."""

    def price(self, table: PageTable, length: int, narrow: bool = False) -> int:
        """Return the additional memory that a page table needs to grow to `length` positions."""

    def grow(self, table: PageTable, length: int, narrow: bool = False) -> bool:
        """Extend a page table to have pages for `length` positions. Returns False and changes
        nothing if too little memory is free. If `narrow`, only the first new pages get memory in
        sliding-window layers: as many as a session needs at the same time.
        """

    def trim(self, table: PageTable, length: int) -> None:
        """Find the first unused page of a page table that has no memory in sliding-window layers,
        and release this page and all later pages. Only the pages of the first `length` positions
        are in use.
        """

    def release(self, table: PageTable, start: int = 0) -> None:
        """Remove all pages at index `start` and above from a page table."""

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Copy the keys and values of positions `start` to `stop` from one table to another."""

    def compact(self, table: PageTable, start: int, path: Sequence[int]) -> None:
        """Move the keys and values of positions `start + path[i]` to `start + i`. Afterwards, the
        content of all positions after the moved ones is undefined.
        """

    def finite(self, table: PageTable, start: int, stop: int) -> bool:
        """Return whether the keys and values of positions from `start` to `stop` are finite, which
        means that the model did not overflow there.
        """
