"""What cached positions take of memory, where some layers see the last positions only. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.engine.cache.pages import PAGE

STRETCH = 32  # numbered pages at most for each that memory holds in all layers


@dataclass(frozen=True, slots=True)
class Footprint:
    """A position takes `full` units of memory in layers that see all of a text, and `windowed` in
    those that see its last `window` positions only: there it is given up when the window has left
    it and the memory is wanted. A pass feeds a session `step` positions at most. A page has `page`.
    """

    full: int = 1
    windowed: int = 0
    window: int = 0
    step: int = 0
    page: int = PAGE

    @property
    def whole(self) -> int:
        """Units of a position in all layers."""
        return self.full + self.windowed

    @property
    def reach(self) -> int:
        """Pages at most that a session needs in all layers at once."""
        return -(-(self.window + self.step) // self.page) + 1

    def first(self, length: int) -> int:
        """The number of the first page that a text needs in all layers to go on after `length`
        positions.
        """
        return max(0, length + 1 - self.window) // self.page if self.windowed else 0

    def price(self, pages: int) -> int:
        """Units that so many pages of one session take, for each position of a page."""
        return pages * self.full + min(pages, self.reach) * self.windowed

    def affordable(self, pages: int) -> int:
        """How many pages one session can have in the memory of so many whole ones."""
        left = (pages - self.reach) * self.whole
        return self.reach + left // self.full if self.windowed and left > 0 else pages

    def numbers(self, pages: int) -> int:
        """How many pages are numbered where memory holds so many whole ones: when all numbers are
        taken, so is the memory.
        """
        return pages * self.whole // self.full


def footprint(full: int, windowed: int, window: int, step: int) -> Footprint:
    """Of so many bytes for each position. Address space is not endless either, so a position that
    the window has left counts as a part of a whole one where no layer keeps it.
    """
    least = -(-(full + windowed) // STRETCH)
    return Footprint(max(full, least), min(windowed, full + windowed - least), window, step)
