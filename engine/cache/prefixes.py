"""The interface to texts that sessions leave cached for later sessions. The class in this module
caches nothing; `prefix_tree` caches the pages of a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.engine.cache.session import Session


class Prefixes:
    """The cached texts by scope. This class caches no texts, so sessions share nothing."""

    @property
    def idle(self) -> int:
        """The size of the cached memory that no session needs."""
        return 0

    def reach(self, session: Session, length: int) -> int:
        """Return after how many of its tokens, at most `length`, a session can go on."""
        return min(session.length, length)

    def begin(self, session: Session, tokens: Sequence[int], reserve: Callable[[], None]) -> None:
        """Let a new session hold the cached pages of a text. `reserve` finds the other memory that
        the session needs. An error of `reserve` is raised, and the caller then ends the session.
        """
        reserve()

    def publish(self, session: Session) -> None:
        """Let other sessions begin with the text that a session at work has committed."""

    def cut(self, session: Session, length: int) -> None:
        """Cut a session to its first `length` tokens, or to somewhat fewer."""
        session.cut(length)

    def forget(self, session: Session) -> None:
        """Let no other session begin with the text that only this session holds."""
        session.settled = 0

    def end(self, session: Session) -> None:
        """End a session: empty its table, and keep its committed text cached."""
        session.table.pages.clear()

    def evict(self, size: int) -> None:
        """Free `size` of idle memory, least recently used first."""
