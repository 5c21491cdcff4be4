"""What sessions leave cached for others: nothing, here. Where there are keys, see `prefix_tree`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.engine.cache.session import Session


class Prefixes:
    """Texts that are cached, by scope."""

    @property
    def idle(self) -> int:
        """Memory of what is cached, and needed by no session."""
        return 0

    def reach(self, session: Session, length: int) -> int:
        """After how many of its tokens a session can go on, `length` or fewer."""
        return min(session.length, length)

    def begin(self, session: Session, tokens: Sequence[int], reserve: Callable[[], None]) -> None:
        """Let a new session hold what is cached of a text. `reserve` finds the memory that it needs
        besides; what this raises is raised, and the session is ended.
        """
        reserve()

    def publish(self, session: Session) -> None:
        """Others may begin with what a session at work has committed."""

    def cut(self, session: Session, length: int) -> None:
        """Have a session hold its first `length` tokens only, or somewhat fewer."""
        session.cut(length)

    def forget(self, session: Session) -> None:
        """Nobody is to begin with what this session alone holds."""
        session.settled = 0

    def end(self, session: Session) -> None:
        """A session ends: its table is empty then, and what it has committed stays cached."""
        session.table.pages.clear()

    def evict(self, size: int) -> None:
        """Free so much idle memory, that first which was used least recently."""
