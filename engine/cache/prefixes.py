"""The interface to texts that sessions leave cached for others. In this class nothing stays cached;
`prefix_tree` keeps the pages of a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.engine.cache.session import Session


class Prefixes:
    """The cached texts by scope; this class caches none, so that a session shares nothing."""

    @property
    def idle(self) -> int:
        """The size of the memory that is cached and that no session needs."""
        return 0

    def reach(self, session: Session, length: int) -> int:
        """Return the largest number of its tokens, up to `length`, after which a session can go
        on.
        """
        return min(session.length, length)

    def begin(self, session: Session, tokens: Sequence[int], reserve: Callable[[], None]) -> None:
        """Let a new session hold the pages that are cached of a text. `reserve` finds the memory
        that the session needs besides. An error of `reserve` is raised; the caller then ends the
        session.
        """
        reserve()

    def publish(self, session: Session) -> None:
        """Let others begin with the text that a session at work has committed."""

    def cut(self, session: Session, length: int) -> None:
        """Have a session hold its first `length` tokens only, or somewhat fewer."""
        session.cut(length)

    def forget(self, session: Session) -> None:
        """Let no other session begin with the text that this session alone holds."""
        session.settled = 0

    def end(self, session: Session) -> None:
        """End a session: empty its table, and keep its committed text cached."""
        session.table.pages.clear()

    def evict(self, size: int) -> None:
        """Free `size` of idle memory, least recently used first."""
