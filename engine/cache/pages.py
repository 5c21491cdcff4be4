"""Pages of keys and values, and the page table of a session. A page never moves in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE = 64  # positions per page


def page_aligned(length: int, page: int = PAGE) -> int:
    """Round a number of positions up to whole pages, at least one page."""
    return -(-max(length, 1) // page) * page


@dataclass(slots=True, eq=False)
class PageTable:
    """The page table of a session: the page `pages[n]` holds the session's positions from n * page
    on. `viewed` holds the pages whose memory in sliding-window layers the session needs, and
    `first` is the lowest index of these pages. From index `unbacked` on, pages get memory in
    sliding-window layers only shortly before tokens are fed into them. The page at index `spare` is
    the next page whose memory in sliding-window layers is passed on to an unbacked page.
    """

    pages: list[int] = field(default_factory=list)
    page: int = PAGE
    viewed: set[int] = field(default_factory=set)
    first: int = 0
    unbacked: int | None = None
    spare: int = 0

    @property
    def capacity(self) -> int:
        """The number of positions for which the table has pages."""
        return len(self.pages) * self.page

    def slots(self, start: int, stop: int) -> list[int]:
        """Return the slots of positions `start` to `stop`, i.e. the indices of their rows in the
        pool.
        """
        page, slots = self.page, list[int]()
        for number in range(start // page, -(-stop // page)):
            shift = (self.pages[number] - number) * page
            slots += range(
                max(start, number * page) + shift, min(stop, number * page + page) + shift
            )
        return slots
