"""Allocate KV cache pages to page tables, share pages between tables, and free pages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from tandem.engine.cache.ledger import PageLedger
from tandem.engine.cache.pages import PageTable, page_aligned


class PageAllocator(PageLedger):
    """Allocates and frees the pages of page tables. A page table *views* a page while it needs the
    page's memory in sliding-window layers. The table needs this memory until the page is filled and
    has left all sliding windows.
    """

    def allocate(self, length: int) -> PageTable | None:
        """Create a page table for `length` positions; return None if too little memory is free."""
        table = PageTable(page=self.page)
        return table if self.grow(table, length) else None

    def price(self, table: PageTable, length: int, narrow: bool = False) -> int:
        """Return the additional memory that a page table needs to grow to `length` positions."""
        missing = (page_aligned(length, self.page) - table.capacity) // self.page
        each = self.footprint.price(missing) if narrow else missing * self.footprint.whole
        return max(0, each * self.page)

    def grow(self, table: PageTable, length: int, narrow: bool = False) -> bool:
        """Extend a page table to have pages for `length` positions. Returns False and changes
        nothing if too little memory is free. If `narrow`, only the first new pages get memory in
        sliding-window layers: as many as a session needs at the same time.
        """
        if self.price(table, length, narrow) > self.free:
            return False
        begin = len(table.pages)
        stop = max(begin, page_aligned(length, self.page) // self.page)
        whole = min(stop, begin + self.footprint.reach) if narrow else stop
        for number in range(begin, stop):
            page = self._free.pop()
            self._warm = max(0, self._warm - 1)
            if number >= whole:
                self._unbacked.add(page)
                self._give_back(page, everywhere=False)
            self._hold(table, page, number < whole)
        if whole < stop:
            table.unbacked, table.spare = whole, begin
        return True

    def prepare(self, table: PageTable, context: int, stop: int) -> None:
        """Before a forward pass writes to positions `context` to `stop`, make sure that the pages
        of these positions have memory in sliding-window layers. A page without sliding-window
        memory takes over the memory of an earlier page that has left the window.
        """
        while table.unbacked is not None and table.unbacked * self.page < stop:
            assert table.spare < self.footprint.first(context), "one pass feeds too many tokens"
            left, page = table.pages[table.spare], table.pages[table.unbacked]
            self._drop_view(table, left)
            self.release_memory(left)
            self._back(page)
            self._view(table, page)
            table.spare, number = table.spare + 1, table.unbacked + 1
            table.unbacked = number if number < len(table.pages) else None

    def trim(self, table: PageTable, length: int) -> None:
        """Find the first unused page of a page table that has no memory in sliding-window layers,
        and release this page and all later pages. Only the pages of the first `length` positions
        are in use.
        """
        for number in range(-(-length // self.page), len(table.pages) * bool(self._unbacked)):
            if table.pages[number] in self._unbacked:
                return self.release(table, number)

    @abstractmethod
    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Copy the keys and values of positions `start` to `stop` from one table to another."""

    @abstractmethod
    def _copy_windowed(self, source: int, target: int) -> None:
        """Copy the keys and values of one page to another page, but only in sliding-window
        layers.
        """

    def share(self, table: PageTable, pages: Sequence[int], first: int = 0) -> None:
        """Append cached pages to a page table. The table needs the sliding-window memory of its
        pages only from index `first` on.
        """
        table.first = first
        for page in pages:
            self._hold(table, page, len(table.pages) >= first)

    def replace(self, table: PageTable, number: int, page: int) -> None:
        """Replace the page at index `number` of a page table by a cached page that has the same
        content.
        """
        own = table.pages[number]
        if page in self._unbacked and own not in self._unbacked:
            self._copy_windowed(own, page)
            self._back(page)
        self._hold(table, page, own in table.viewed)
        table.pages[number] = table.pages.pop()
        self._let_go(table, own)

    def usable(self, pages: Sequence[int], length: int) -> int:
        """Return the last position, at most `length`, from which a session with these `pages` can
        continue. All pages inside the sliding windows at that position must still have memory in
        sliding-window layers.
        """
        for number in range(-(-length // self.page) - 1, -1, -1) if self._unbacked else ():
            if number < self.footprint.first(length):
                break
            if pages[number] in self._unbacked:
                length = number * self.page
        return length

    def look(self, table: PageTable, first: int) -> None:
        """Record that a page table needs sliding-window memory only for its pages from index
        `first` on.
        """
        for page in table.pages[table.first : first]:
            self._drop_view(table, page)
        for page in table.pages[first : table.first]:
            self._view(table, page)
        table.first = first

    def release(self, table: PageTable, start: int = 0) -> None:
        """Remove all pages at index `start` and above from a page table. A removed page becomes
        free unless another table holds it or it is cached.
        """
        while len(table.pages) > start:
            self._let_go(table, table.pages.pop())
        table.first = min(table.first, start)
        table.unbacked = (
            None if table.unbacked is None or table.unbacked >= start else table.unbacked
        )

    def parts(self, table: PageTable) -> Iterator[tuple[int, int, int]]:
        """Yield, for each part of a page table's memory, the part's identifier, the number of
        tables that share it, and its size.
        """
        for page in table.pages:
            yield page, self._holders[page], self.footprint.full * self.page
        for page in table.viewed:
            yield ~page, self._viewers[page], self.footprint.windowed * self.page

    def _hold(self, table: PageTable, page: int, viewed: bool) -> None:
        with self._counted(page):
            self._holders[page] += 1
        table.pages.append(page)
        if viewed:
            self._view(table, page)

    def _let_go(self, table: PageTable, page: int) -> None:
        self._drop_view(table, page)
        with self._counted(page):
            self._holders[page] -= 1

    def _view(self, table: PageTable, page: int) -> None:
        if self.footprint.windowed and page not in table.viewed:
            assert page not in self._unbacked, "the page has no memory in sliding-window layers"
            with self._counted(page):
                self._viewers[page] += 1
            table.viewed.add(page)

    def _drop_view(self, table: PageTable, page: int) -> None:
        if page in table.viewed:
            with self._counted(page):
                self._viewers[page] -= 1
            table.viewed.remove(page)
