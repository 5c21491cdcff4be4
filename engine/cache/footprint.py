"""Calculate how much memory cached positions take in models with sliding windows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.engine.cache.pages import PAGE

STRETCH = 32  # upper bound of `whole / full`, the ratio of address space to memory


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory that a cached position takes: `full` units in full-attention layers, and
    `windowed` units in sliding-window layers, which attend only to the last `window` positions. The
    windowed memory may be freed once the position has left the window. A forward pass feeds a
    session at most `step` positions. A page has `page` positions.
    """

    full: int = 1
    windowed: int = 0
    window: int = 0
    step: int = 0
    page: int = PAGE

    @property
    def whole(self) -> int:
        """The units of memory that a position takes in all layers together."""
        return self.full + self.windowed

    @property
    def reach(self) -> int:
        """The maximum number of pages for which a session needs memory in all layers at the same
        time.
        """
        return -(-(self.window + self.step) // self.page) + 1

    def first(self, length: int) -> int:
        """Return the index of the first page that sliding-window layers still need once `length`
        positions are cached.
        """
        return max(0, length + 1 - self.window) // self.page if self.windowed else 0

    def price(self, pages: int) -> int:
        """Return the memory that `pages` pages of one session take, divided by the page size.
        Callers multiply the result by the page size.
        """
        return pages * self.full + min(pages, self.reach) * self.windowed

    def affordable(self, pages: int) -> int:
        """Return the maximum number of pages of a single session. The available memory is just
        large enough for `pages` pages that have memory in all layers.
        """
        left = (pages - self.reach) * self.whole
        return self.reach + left // self.full if self.windowed and left > 0 else pages

    def numbers(self, pages: int) -> int:
        """Return how many page numbers a pool needs so that all its memory can be used, even if no
        page has memory in sliding-window layers. The available memory is just large enough for
        `pages` pages that have memory in all layers.
        """
        return pages * self.whole // self.full


def footprint(full: int, windowed: int, window: int, step: int) -> Footprint:
    """Create a footprint from the bytes that a position takes in full-attention layers and in
    sliding-window layers. Even if all layers have a sliding window, `full` is at least 1 / STRETCH
    of the position's total memory, because this limits the address space that a pool needs.
    """
    least = -(-(full + windowed) // STRETCH)
    return Footprint(max(full, least), min(windowed, full + windowed - least), window, step)
