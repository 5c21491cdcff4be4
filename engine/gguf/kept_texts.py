"""What sessions on llama.cpp leave cached: their texts, each with pages of its own, as its cells
are counted only once. A session that goes on where another one ended takes over its pages;
otherwise it gets the same cells, under pages of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from tandem.engine.cache.kv_cache import KVCache
from tandem.engine.cache.pages import PageTable, page_aligned
from tandem.engine.cache.prefixes import Prefixes
from tandem.engine.cache.session import Session


class KeptTexts(Prefixes):
    """At most `most` sessions that have ended."""

    def __init__(self, pool: KVCache, most: int) -> None:
        self._pool, self._most = pool, most
        self._kept: list[Session] = []  # those that ended first come first

    @property
    def idle(self) -> int:
        """Positions that are cached, and held by no session."""
        return sum(each.table.capacity for each in list(self._kept))  # read by any thread

    def begin(self, session: Session, tokens: Sequence[int], reserve: Callable[[], None]) -> None:
        """Let a new session hold what is cached of a text."""
        wanted = array("I", tokens)
        own = [each for each in self._kept if each.scope == session.scope]
        best = max(own, key=lambda each: each.common_prefix_with(wanted), default=None)
        length = best.common_prefix_with(wanted) if best else 0
        if best and length == best.length:
            self._kept.remove(best)
            session.table, session.tokens, session.settled = best.table, best.tokens, length
        reserve()
        if best and best in self._kept:  # or it was evicted for this one
            self._pool.copy(best.table, session.table, 0, length)
            session.tokens.extend(wanted[:length])
            session.settled = length

    def end(self, session: Session) -> None:
        """A session ends: its table is empty then, and what it has committed stays cached."""
        session.cut(session.settled)
        if not session.length:
            self._pool.release(session.table)
            return
        self._pool.release(session.table, page_aligned(session.length) // session.table.page)
        kept = Session(session.table, session.epoch, session.scope, tokens=session.tokens)
        self._kept.append(kept)
        session.table = PageTable()
        if len(self._kept) > self._most:
            self._pool.release(self._kept.pop(0).table)

    def evict(self, positions: int) -> None:
        """Free so many idle positions, of those first that ended first."""
        target = self._pool.free + positions
        while self._pool.free < target and self._kept:
            self._pool.release(self._kept.pop(0).table)
