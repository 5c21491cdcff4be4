"""Calculate how much memory cached positions take in models with sliding windows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.engine.cache.pages import PAGE

STRETCH = 32  # most page numbers per page that the memory could hold in all layers


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory that a cached position takes: `full` units in the layers that see all of a text,
    and `windowed` units in the layers that see only the last `window` positions. The windowed
    memory may be given up once the position is no longer in the window. A pass feeds a session at
    most `step` positions. A page has `page` positions.
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
        """Return the number of the first page that a text still needs in all layers after `length`
        positions.
        """
        return max(0, length + 1 - self.window) // self.page if self.windowed else 0

    def price(self, pages: int) -> int:
        """Return the units of memory that `pages` pages of one session take, divided by the number
        of positions in a page.
        """
        return pages * self.full + min(pages, self.reach) * self.windowed

    def affordable(self, pages: int) -> int:
        """Return how many pages one session can have in memory that holds `pages` pages in all
        layers.
        """
        left = (pages - self.reach) * self.whole
        return self.reach + left // self.full if self.windowed and left > 0 else pages

    def numbers(self, pages: int) -> int:
        """Return how many page numbers there are if the memory holds `pages` pages in all layers.
        All memory can be used even if no page has memory in layers with a window.
        """
        return pages * self.whole // self.full


def footprint(full: int, windowed: int, window: int, step: int) -> Footprint:
    """Make a footprint from the bytes of a position in full and in windowed layers. Because address
    space is limited too, `full` is at least 1 / STRETCH of a position's memory in all layers, even
    if all layers have a window.
    """
    least = -(-(full + windowed) // STRETCH)
    return Footprint(max(full, least), min(windowed, full + windowed - least), window, step)
