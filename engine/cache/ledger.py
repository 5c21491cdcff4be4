"""Keep account of the memory of each page, of how many sessions hold it, and of the free pages.

The ledger only keeps the account. The pool owns the memory and moves its content.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.engine.cache.footprint import Footprint

EVERYWHERE = Footprint()  # the footprint of models in which no layer has a window


class PageLedger(ABC):
    """The account of memory for `positions` positions in whole pages.

    Any number of sessions may hold a page, and a page may be cached for later sessions. A page is
    free if no session holds the page and it is not cached. In layers with a sliding window, only
    some of the sessions that hold a page *view* it. A page may be *unbacked* in these layers, which
    means that it has no memory there.

    Memory is counted in the units of `footprint`, or in positions if no layer has a window.
    """

    def __init__(self, positions: int, footprint: Footprint = EVERYWHERE) -> None:
        self.footprint = footprint
        self.page = footprint.page
        self.positions = positions // self.page * self.page
        self.allocated = 0
        self.idle = 0
        self.numbered = footprint.numbers(self.positions // self.page)
        self._free = deque(reversed(range(self.numbered)))  # the last `_warm` pages have memory
        self._warm = 0  # the number of free pages that have memory
        self._holders = [0] * self.numbered
        self._viewers = [0] * self.numbered
        self._cached: set[int] = set()
        self._unbacked: set[int] = set()

    @property
    def size(self) -> int:
        """The size of all memory. Pages that are not free take `allocated` of this memory. `idle`
        is the part of `allocated` that is cached and that no session needs.
        """
        return self.positions * self.footprint.whole

    @property
    def free(self) -> int:
        """The size of the memory that tables can still get."""
        return self.size - self.allocated

    def holders(self, page: int) -> int:
        """Return how many sessions hold a page."""
        return self._holders[page]

    def cache(self, page: int) -> None:
        """Cache a page that a session holds, until the page is evicted."""
        with self._counted(page):
            self._cached.add(page)

    def evict(self, page: int) -> None:
        """Stop caching a page for later sessions."""
        with self._counted(page):
            self._cached.remove(page)

    def unseen(self, page: int) -> bool:
        """Return whether a cached page has memory in layers with a window that no session needs."""
        windowed = self.footprint.windowed > 0 and page not in self._unbacked
        return windowed and page in self._cached and not self._viewers[page]

    def unbacked(self, page: int) -> bool:
        """Return whether a page has no memory in layers with a window."""
        return page in self._unbacked

    def release_memory(self, page: int) -> None:
        """Give up the memory that a page has in layers with a window."""
        with self._counted(page):
            self._unbacked.add(page)
        self._give_back(page, everywhere=False)

    def _back(self, page: int) -> None:
        with self._counted(page):
            self._unbacked.remove(page)

    @contextmanager
    def _counted(self, page: int) -> Iterator[None]:
        """Update `allocated` and `idle` by what the scope changes about a page."""
        allocated, idle = self._state(page)
        yield
        now, now_idle = self._state(page)
        self.allocated += now - allocated
        self.idle += now_idle - idle
        if allocated and not now:
            self._set_free(page)

    def _state(self, page: int) -> tuple[int, int]:
        """Return the memory that a page takes, and how much of it is idle."""
        cached, held, size = page in self._cached, self._holders[page], self.footprint
        windowed = 0 if page in self._unbacked else size.windowed * self.page
        full = size.full * self.page
        idle = (not held) * full + (not self._viewers[page]) * windowed
        return (cached or held > 0) * (full + windowed), cached * idle

    def _set_free(self, page: int) -> None:
        """Make a page free. The page keeps its memory for the next session if it is backed and
        enough memory is left; otherwise its memory goes back to the system.
        """
        kept = (self._warm + 1) * self.page * self.footprint.whole
        if page in self._unbacked or self.allocated + kept > self.size:
            self._unbacked.discard(page)
            self._give_back(page, everywhere=True)
            self._free.appendleft(page)
        else:
            self._warm += 1
            self._free.append(page)

    @abstractmethod
    def _give_back(self, page: int, everywhere: bool) -> None:
        """Give a page's memory back to the system, in all layers or only in those with a window."""
