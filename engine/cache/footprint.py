"""Calculate the memory of cached positions where some layers see the last positions only. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.engine.cache.pages import PAGE

STRETCH = 32  # most numbered pages for each page that memory holds in all layers


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of a cached position: `full` units in layers that see all of a text, `windowed` in
    layers that see only the last `window` positions. The windowed memory may be given up once the
    window has left the position. A pass feeds a session `step` positions at most. A page has `page`
    positions.
    """

    full: int = 1
    windowed: int = 0
    window: int = 0
    step: int = 0
    page: int = PAGE

    @property
    def whole(self) -> int:
        """The units of memory that a position takes in all layers."""
        return self.full + self.windowed

    @property
    def reach(self) -> int:
        """The most pages that a session needs in all layers at once."""
        return -(-(self.window + self.step) // self.page) + 1

    def first(self, length: int) -> int:
        """Return the number of the first page that a text needs in all layers to go on after
        `length` positions.
        """
        return max(0, length + 1 - self.window) // self.page if self.windowed else 0

    def price(self, pages: int) -> int:
        """Return the units that `pages` pages of one session take, per position of a page."""
        return pages * self.full + min(pages, self.reach) * self.windowed

    def affordable(self, pages: int) -> int:
        """Return how many pages one session can have in the memory of `pages` whole pages."""
        left = (pages - self.reach) * self.whole
        return self.reach + left // self.full if self.windowed and left > 0 else pages

    def numbers(self, pages: int) -> int:
        """Return how many page numbers there are where memory holds `pages` whole pages: enough to
        use all memory.
        """
        return pages * self.whole // self.full


def footprint(full: int, windowed: int, window: int, step: int) -> Footprint:
    """Make a footprint from the bytes of a position in full and in windowed layers. Address space
    is not endless either: `full` is at least 1 / STRETCH of a whole position, so even a position
    that no layer keeps counts.
    """
    least = -(-(full + windowed) // STRETCH)
    return Footprint(max(full, least), min(windowed, full + windowed - least), window, step)
