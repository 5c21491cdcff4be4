"""The cache of a GGUF model as KV ranges of a bounded number of positions.

A KV range counts positions; llama.cpp decides where they are, so nothing is ever moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.engine.cache.ranges import KVRange, RangeCapacity, block_aligned
from tandem.engine.gguf.sequences import RangeContent, Sequences


class CellCache(RangeCapacity):
    """At most `positions` of them are in KV ranges (`engine.cache.kv_cache.KVCache`)."""

    def __init__(self, sequences: Sequences, positions: int) -> None:
        self._kv_ranges: dict[KVRange, RangeContent] = {}
        super().__init__(positions, self._kv_ranges)
        self.sequences = sequences

    def content(self, kv_range: KVRange) -> RangeContent:
        """What a KV range holds."""
        return self._kv_ranges[kv_range]

    def allocate(self, length: int) -> KVRange | None:
        """A KV range for `length` positions; None if there are not so many free."""
        if block_aligned(length) > self.free:
            return None
        kv_range = KVRange(0, block_aligned(length))
        self._kv_ranges[kv_range] = self.sequences.open()
        return kv_range

    def grow(self, kv_range: KVRange, length: int) -> bool:
        """Make a KV range hold `length` positions; False if there are not so many free."""
        if block_aligned(length) - kv_range.capacity > self.free:
            return False
        kv_range.capacity = max(kv_range.capacity, block_aligned(length))
        return True

    def release(self, kv_range: KVRange) -> None:
        """Free a KV range."""
        assert kv_range.capacity, "a KV range is given back once"
        kv_range.capacity = 0
        self.sequences.close(self._kv_ranges.pop(kv_range))

    def copy(self, source: KVRange, target: KVRange, count: int) -> None:
        """A KV range gets the first `count` positions of another: the same cells."""
        self.sequences.share(self.content(source), self.content(target), count)

    def compact(self, kv_range: KVRange, start: int, path: Sequence[int]) -> None:
        """Move the positions `start + path[i]` to `start + i`; what lies after those is dead."""
        self.sequences.moved(self.content(kv_range), start, path)

    def finite(self, kv_range: KVRange, length: int) -> bool:
        """Whether the model did not overflow."""
        return self.content(kv_range).finite

    def wipe(self, kv_range: KVRange, start: int = 0) -> None:
        """Forget a KV range's content from `start` on."""
        content = self.content(kv_range)
        content.finite = True
        self.sequences.cut(content, start)
