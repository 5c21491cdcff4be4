"""What memory each page takes, who holds it, and which pages are free.

Decides alone; what pages hold is known to the pool that has their memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.engine.cache.footprint import Footprint

EVERYWHERE = Footprint()  # no layer has a window


class PageLedger(ABC):
    """Memory for `positions` positions in whole pages. A page is held by any number of sessions,
    and may be `cached` besides, for sessions to come; it is free when neither is so. In layers with
    a sliding window it is viewed by fewer sessions than hold it, and may be bare: without memory.

    Memory is counted in the units of `footprint`; where no layer has a window, in positions.
    """

    def __init__(self, positions: int, footprint: Footprint = EVERYWHERE) -> None:
        self.footprint, self.page = footprint, footprint.page
        self.positions = positions // self.page * self.page
        self.allocated = self.idle = 0
        self.numbered = footprint.numbers(self.positions // self.page)
        self._free = deque(reversed(range(self.numbered)))  # first those that have memory
        self._warm = 0  # of them
        self._holders = [0] * self.numbered
        self._viewers = [0] * self.numbered
        self._cached: set[int] = set()
        self._bare: set[int] = set()

    @property
    def size(self) -> int:
        """All there is. What pages that are not free take of it is `allocated`, and `idle` what is
        cached and no session needs.
        """
        return self.positions * self.footprint.whole

    @property
    def free(self) -> int:
        """What tables can still get."""
        return self.size - self.allocated

    def holders(self, page: int) -> int:
        """How many sessions hold a page."""
        return self._holders[page]

    def cache(self, page: int) -> None:
        """Keep a page that a session holds, until it is evicted."""
        with self._counted(page):
            self._cached.add(page)

    def evict(self, page: int) -> None:
        """Keep a page no longer for those to come."""
        with self._counted(page):
            self._cached.remove(page)

    def unseen(self, page: int) -> bool:
        """Whether a cached page has memory in layers with a window that no session needs there."""
        windowed = self.footprint.windowed > 0 and page not in self._bare
        return windowed and page in self._cached and not self._viewers[page]

    def bare(self, page: int) -> bool:
        """Whether a page has no memory in layers with a window."""
        return page in self._bare

    def strip(self, page: int) -> None:
        """Give up what a page has in layers with a window."""
        with self._counted(page):
            self._bare.add(page)
        self._give_back(page, everywhere=False)

    def _clothe(self, page: int) -> None:
        with self._counted(page):
            self._bare.remove(page)

    @contextmanager
    def _counted(self, page: int) -> Iterator[None]:
        """What changes of a page within the scope is counted."""
        allocated, idle = self._state(page)
        yield
        now, now_idle = self._state(page)
        self.allocated += now - allocated
        self.idle += now_idle - idle
        if allocated and not now:
            self._set_free(page)

    def _state(self, page: int) -> tuple[int, int]:
        """What a page takes, and what of it is idle."""
        cached, held, size = page in self._cached, self._holders[page], self.footprint
        windowed = 0 if page in self._bare else size.windowed * self.page
        full = size.full * self.page
        idle = (not held) * full + (not self._viewers[page]) * windowed
        return (cached or held > 0) * (full + windowed), cached * idle

    def _set_free(self, page: int) -> None:
        """A page keeps its memory for whoever comes next, if it has all and there is enough."""
        kept = (self._warm + 1) * self.page * self.footprint.whole
        if page in self._bare or self.allocated + kept > self.size:
            self._bare.discard(page)
            self._give_back(page, everywhere=True)
            self._free.appendleft(page)
        else:
            self._warm += 1
            self._free.append(page)

    @abstractmethod
    def _give_back(self, page: int, everywhere: bool) -> None:
        """Give the memory of a page back to the system, in layers with a window or in all."""
