"""Whose memory may go when another session needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.session import Session


def evictable(sessions: Iterable[Session], wanting: Session, idle_since: float) -> list[Session]:
    """Those whose memory `wanting` may have, in the order in which they go: not at work, and last
    used before `idle_since`, those used least recently first.
    """
    idle = [
        session
        for session in sessions
        if session is not wanting and not session.active and session.used <= idle_since
    ]
    return sorted(idle, key=lambda session: session.used)


def to_evict(
    order: Sequence[Session],
    least: int,
    lacking: int,
    parts: Callable[[PageTable], Iterable[tuple[int, int, int]]],
) -> Sequence[Session] | None:
    """The first sessions of `order`, `least` of them or as many more as it takes for so much memory
    that is lacking; None if all are not enough. `parts` are the name, holders and size of each part
    of a table: it goes with the last session that holds it.
    """
    held: Counter[int] = Counter()
    for count in range(len(order) + 1):
        if count >= least and lacking <= 0:
            return order[:count]
        for part, holders, size in parts(order[count].table) if count < len(order) else ():
            held[part] += 1
            lacking -= size * (held[part] == holders)
    return None
