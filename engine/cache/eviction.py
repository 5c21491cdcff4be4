"""Choose which sessions to evict when another session needs memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.session import Session


def evictable(sessions: Iterable[Session], growing: Session, idle_since: float) -> list[Session]:
    """Return the sessions that may be evicted to make room for the session `growing`, least
    recently used first. A session may be evicted if it has no running job and was last used at
    `idle_since` or before.
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
    """Return the sessions to evict: the shortest prefix of `order` that contains at least `least`
    sessions and frees at least `lacking` units of memory. Returns None if evicting all sessions of
    `order` would not be enough. `parts` yields the identifier, the number of holders and the size
    of each part of a page table's memory. A part of the memory becomes free only once all sessions
    that hold it are evicted.
    """
    held: Counter[int] = Counter()
    for count in range(len(order) + 1):
        if count >= least and lacking <= 0:
            return order[:count]
        for part, holders, size in parts(order[count].table) if count < len(order) else ():
            held[part] += 1
            lacking -= size * (held[part] == holders)
    return None
