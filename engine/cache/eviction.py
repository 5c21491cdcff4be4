"""Choose the sessions whose memory is taken when another session needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.session import Session


def evictable(sessions: Iterable[Session], growing: Session, idle_since: float) -> list[Session]:
    """Return the sessions whose memory `growing` may get, least recently used first: those that
    are not at work and were last used at `idle_since` or before.
    """
    idle = [
        session
        for session in sessions
        if session is not growing and not session.active and session.used <= idle_since
    ]
    return sorted(idle, key=lambda session: session.used)


def to_evict(
    order: Sequence[Session],
    least: int,
    lacking: int,
    parts: Callable[[PageTable], Iterable[tuple[int, int, int]]],
) -> Sequence[Session] | None:
    """Return the first sessions of `order`: at least `least`, and as many as it takes to free the
    `lacking` memory. Return None if all of these sessions are not enough. `parts` gives the name,
    holders and size of each part of a table; a part becomes free with the last session that holds
    it.
    """
    held: Counter[int] = Counter()
    for count in range(len(order) + 1):
        if count >= least and lacking <= 0:
            return order[:count]
        for part, holders, size in parts(order[count].table) if count < len(order) else ():
            held[part] += 1
            lacking -= size * (held[part] == holders)
    return None
