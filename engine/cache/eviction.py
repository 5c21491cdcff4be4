"""Whose memory may go when another session needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

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
    order: Sequence[Session], least: int, lacking: int, holders: Callable[[int], int]
) -> Sequence[Session] | None:
    """The first sessions of `order`, `least` of them or as many more as it takes for so many pages
    that are lacking; None if all are not enough. A page goes with the last session that holds it.
    """
    held: Counter[int] = Counter()
    for count in range(len(order) + 1):
        if count >= least and lacking <= 0:
            return order[:count]
        for page in order[count].table.pages if count < len(order) else ():
            held[page] += 1
            lacking -= held[page] == holders(page)
    return None
