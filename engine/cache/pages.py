"""Pages of keys and values, and which ones a session has. A page never moves."""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE = 64  # positions


def page_aligned(length: int, page: int = PAGE) -> int:
    """Positions of the pages that `length` of them take; never none."""
    return -(-max(length, 1) // page) * page


@dataclass(slots=True, eq=False)
class PageTable:
    """The `pages` of a session, of `page` positions each: the n-th has its positions from
    n * page on. `viewed` are those that it needs in layers with a sliding window too, from the
    `first`-th on; the pages from the `bare`-th on get memory there when they are fed, and the
    `spare`-th is the next to give some up for them.
    """

    pages: list[int] = field(default_factory=list)
    page: int = PAGE
    viewed: set[int] = field(default_factory=set)
    first: int = 0
    bare: int | None = None
    spare: int = 0

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
