"""Pages of keys and values: which are free, who holds the others, and which ones a session has.

Decides alone; what pages hold is known to the pool that has their memory. A page never moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

PAGE = 64  # positions
CUDA_PAGE = 256  # what PyTorch's flash kernel takes


def page_of(device: torch.device) -> int:
    """Positions of a page on a device."""
    return CUDA_PAGE if device.type == "cuda" else PAGE


def page_aligned(length: int, page: int = PAGE) -> int:
    """Positions of the pages that `length` of them take; never none."""
    return -(-max(length, 1) // page) * page


@dataclass(slots=True, eq=False)
class PageTable:
    """The `pages` of a session, of `page` positions each: the n-th has its positions from
    n * page on.
    """

    pages: list[int] = field(default_factory=list)
    page: int = PAGE

    @property
    def capacity(self) -> int:
        """Positions that there are pages for."""
        return len(self.pages) * self.page

    def slots(self, start: int, stop: int) -> list[int]:
        """Where the positions from `start` to `stop` lie in the pool."""
        page, found = self.page, list[int]()
        for number in range(start // page, -(-stop // page)):
            shift = (self.pages[number] - number) * page
            found += range(
                max(start, number * page) + shift, min(stop, number * page + page) + shift
            )
        return found


class PageAllocator(ABC):
    """`positions` positions in whole pages. A page is held by any number of sessions, and may be
    `cached` besides, for sessions to come; it is free when neither is so.
    """

    def __init__(self, positions: int, page: int = PAGE) -> None:
        count = positions // page
        self.page, self.positions = page, count * page
        self._free = list(reversed(range(count)))  # those used last are taken first: they are warm
        self._holders = [0] * count
        self._cached: set[int] = set()
        self._idle = 0

    @property
    def free(self) -> int:
        """Positions of free pages."""
        return len(self._free) * self.page

    @property
    def allocated(self) -> int:
        """Positions of all others."""
        return self.positions - self.free

    @property
    def idle(self) -> int:
        """Positions of pages that are cached, and held by no session."""
        return self._idle * self.page

    def allocate(self, length: int) -> PageTable | None:
        """Pages for `length` positions; None if there are not so many free."""
        table = PageTable(page=self.page)
        return table if self.grow(table, length) else None

    def grow(self, table: PageTable, length: int) -> bool:
        """Give a table pages for `length` positions; False, and unchanged, if there are not so many
        free.
        """
        missing = page_aligned(length, self.page) - table.capacity
        if missing > self.free:
            return False
        for _ in range(missing // self.page):
            page = self._free.pop()
            self._holders[page] = 1
            table.pages.append(page)
        return True

    @abstractmethod
    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Copy the positions from `start` to `stop` of one table to another."""

    def share(self, table: PageTable, pages: Sequence[int]) -> None:
        """Have a table go on with pages that are cached."""
        for page in pages:
            self._hold(page)
            table.pages.append(page)

    def replace(self, table: PageTable, number: int, page: int) -> None:
        """Have a table hold a page that is cached instead of its own one of that number."""
        self._hold(page)
        self._let_go(table.pages[number])
        table.pages[number] = page

    def release(self, table: PageTable, start: int = 0) -> None:
        """Take from a table its pages from the `start`-th on; those that nobody holds are free."""
        while len(table.pages) > start:
            self._let_go(table.pages.pop())

    def alone(self, page: int) -> bool:
        """Whether a single session holds a page, and nobody else can get it."""
        return self._holders[page] == 1 and page not in self._cached

    def holders(self, page: int) -> int:
        """How many sessions hold a page."""
        return self._holders[page]

    def cache(self, page: int) -> None:
        """Keep a page that a session holds, until it is evicted."""
        self._cached.add(page)

    def evict(self, page: int) -> None:
        """Keep a page no longer for those to come."""
        self._cached.remove(page)
        if not self._holders[page]:
            self._idle -= 1
            self._free.append(page)

    def _hold(self, page: int) -> None:
        self._idle -= not self._holders[page]
        self._holders[page] += 1

    def _let_go(self, page: int) -> None:
        self._holders[page] -= 1
        if not self._holders[page]:
            if page in self._cached:
                self._idle += 1
            else:
                self._free.append(page)
