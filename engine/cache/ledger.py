"""Track the memory of each page, how many sessions hold the page, and which pages are free.

The ledger only does the accounting: the pool owns the memory and moves the keys and values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.engine.cache.footprint import Footprint

EVERYWHERE = Footprint()  # the footprint of models in which no layer has a window


class PageLedger(ABC):
    """Tracks which pages of a memory are in use. The memory has room for `positions` positions,
    rounded down to whole pages.

    Any number of sessions may hold a page, and a page may be cached for later sessions. A page is
    free if no session holds it and it is not cached. A session that holds a page *views* the page
    while it needs the page's memory in sliding-window layers. The session needs this memory until
    the page is filled and has left all sliding windows. A page without memory in sliding-window
    layers is *unbacked*.

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
        """The total size of the memory. `allocated` is the size of the memory in pages that are not
        free. `idle` is the part of `allocated` that is only cached and not needed by any session.
        """
        return self.positions * self.footprint.whole

    @property
    def free(self) -> int:
        """The size of the memory that is free to be allocated."""
        return self.size - self.allocated

    def holders(self, page: int) -> int:
        """Return how many sessions hold a page."""
        return self._holders[page]

    def cache(self, page: int) -> None:
        """Cache a page that a session holds; it stays cached until it is evicted."""
        with self._counted(page):
            self._cached.add(page)

    def evict(self, page: int) -> None:
        """Stop caching a page for later sessions."""
        with self._counted(page):
            self._cached.remove(page)

    def unseen(self, page: int) -> bool:
        """Return whether a page is cached and has memory in sliding-window layers that no session
        needs.
        """
        windowed = self.footprint.windowed > 0 and page not in self._unbacked
        return windowed and page in self._cached and not self._viewers[page]

    def unbacked(self, page: int) -> bool:
        """Return whether a page has no memory in sliding-window layers."""
        return page in self._unbacked

    def release_memory(self, page: int) -> None:
        """Free the memory that a page has in sliding-window layers."""
        with self._counted(page):
            self._unbacked.add(page)
        self._give_back(page, everywhere=False)

    def _back(self, page: int) -> None:
        with self._counted(page):
            self._unbacked.remove(page)

    @contextmanager
    def _counted(self, page: int) -> Iterator[None]:
        """Update `allocated` and `idle` after the body of the `with` statement has changed a
        page.
        """
        allocated, idle = self._state(page)
        yield
        now, now_idle = self._state(page)
        self.allocated += now - allocated
        self.idle += now_idle - idle
        if allocated and not now:
            self._set_free(page)

    def _state(self, page: int) -> tuple[int, int]:
        """Return the size of a page's memory, and how much of it is cached but not needed by any
        session.
        """
        cached, held, size = page in self._cached, self._holders[page], self.footprint
        windowed = 0 if page in self._unbacked else size.windowed * self.page
        full = size.full * self.page
        idle = (not held) * full + (not self._viewers[page]) * windowed
        return (cached or held > 0) * (full + windowed), cached * idle

    def _set_free(self, page: int) -> None:
        """Mark a page as free. The page keeps its memory for the next session if it has memory in
        all layers and enough memory is left; otherwise its memory is returned to the system.
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
        """Return a page's memory to the system: in all layers if `everywhere`, else only in
        sliding-window layers.
        """
