"""The cache of a GGUF model as pages of a bounded number of positions.

Pages only count positions here; llama.cpp decides where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.engine.cache.pages import PageAllocator, PageTable
from tandem.engine.gguf.kept_texts import KeptTexts
from tandem.engine.gguf.sequences import RangeContent, Sequences


class CellCache(PageAllocator):
    """At most `positions` of them are in pages (`engine.cache.kv_cache.KVCache`)."""

    def __init__(self, sequences: Sequences, positions: int) -> None:
        super().__init__(positions)
        self._contents: dict[PageTable, RangeContent] = {}
        self.sequences = sequences
        self.prefixes = KeptTexts(self, sequences.count)

    def content(self, table: PageTable) -> RangeContent:
        """What the pages of a table hold."""
        return self._contents[table]

    def grow(self, table: PageTable, length: int) -> bool:
        """Give a table pages for `length` positions; False if there are not so many free."""
        grown = super().grow(table, length)
        if grown and table not in self._contents:
            self._contents[table] = self.sequences.open()
        return grown

    def release(self, table: PageTable, start: int = 0) -> None:
        """Take from a table its pages."""
        super().release(table, start)
        if not start and table in self._contents:
            self.sequences.close(self._contents.pop(table))

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """A table gets the first `stop` positions of another: the same cells."""
        self.sequences.share(self.content(source), self.content(target), stop)

    def compact(self, table: PageTable, start: int, path: Sequence[int]) -> None:
        """Move the positions `start + path[i]` to `start + i`; what lies after those is dead."""
        self.sequences.moved(self.content(table), start, path)

    def finite(self, table: PageTable, length: int) -> bool:
        """Whether the model did not overflow."""
        return self.content(table).finite

    def wipe(self, table: PageTable, start: int = 0) -> None:
        """Forget a table's content from `start` on."""
        content = self.content(table)
        content.finite = True
        self.sequences.cut(content, start)
