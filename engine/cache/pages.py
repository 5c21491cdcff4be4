"""Pages of keys and values, and the table of the pages that a session has. A page never moves."""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE = 64  # positions


def page_aligned(length: int, page: int = PAGE) -> int:
    """Round a number of positions up to whole pages, at least one page."""
    return -(-max(length, 1) // page) * page


@dataclass(slots=True, eq=False)
class PageTable:
    """The `pages` of a session, of `page` positions each: the n-th page has the session's positions
    from n * page on. `viewed` holds the pages whose memory in layers with a sliding window the
    session needs; the `first`-th page is the first of these. The pages from the `unbacked`-th on
    get memory in these layers only when they are fed. The `spare`-th page is the next page that
    gives up its memory in these layers to an unbacked page.
    """

    pages: list[int] = field(default_factory=list)
    page: int = PAGE
    viewed: set[int] = field(default_factory=set)
    first: int = 0
    unbacked: int | None = None
    spare: int = 0

    @property
    def capacity(self) -> int:
        """The number of positions that the table has pages for."""
        return len(self.pages) * self.page

    def slots(self, start: int, stop: int) -> list[int]:
        """Return the slots of the positions from `start` to `stop`, which are rows of the pool."""
        page, slots = self.page, list[int]()
        for number in range(start // page, -(-stop // page)):
            shift = (self.pages[number] - number) * page
            slots += range(
                max(start, number * page) + shift, min(stop, number * page + page) + shift
            )
        return slots
