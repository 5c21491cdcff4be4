"""The interface of the prefix cache, which keeps the tokens of ended sessions for later sessions.
The class in this module caches nothing; `prefix_tree` implements a cache for the pages of a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.engine.cache.session import Session


class Prefixes:
    """The cached prefixes of all scopes. This class caches nothing, so sessions share nothing."""

    @property
    def idle(self) -> int:
        """The size of the cached memory that no session needs."""
        return 0

    def reach(self, session: Session, length: int) -> int:
        """Return the last position, at most `length`, from which a session can continue."""
        return min(session.length, length)

    def begin(self, session: Session, tokens: Sequence[int], reserve: Callable[[], None]) -> None:
        """Give a new session the cached pages that match the beginning of `tokens`. `reserve`
        allocates the rest of the memory that the session needs. If `reserve` raises an error, the
        caller has to end the session.
        """
        reserve()

    def publish(self, session: Session) -> None:
        """Let other sessions reuse the tokens that a running session has committed."""

    def cut(self, session: Session, length: int) -> None:
        """Truncate a session to at most its first `length` tokens."""
        session.cut(length)

    def forget(self, session: Session) -> None:
        """Stop other sessions from reusing this session's prefix if no other session shares it
        yet.
        """
        session.settled = 0

    def end(self, session: Session) -> None:
        """End a session: release its pages, but keep its committed tokens cached."""
        session.table.pages.clear()

    def evict(self, size: int) -> None:
        """Free `size` units of idle memory, least recently used first."""
