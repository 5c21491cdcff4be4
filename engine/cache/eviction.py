"""Whose memory may go when another session needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandem.engine.cache.session import Session


def evictable(
    sessions: Mapping[bytes, Session], wanting: Session, donor: Session | None, idle_since: float
) -> list[bytes]:
    """The names of those whose memory `wanting` may have, in the order in which they go: closed
    ones first, then those used least recently, the donor only as the last. Open ones go if they
    were last used before `idle_since`; a preempted one goes at once, for one that has memory and
    grows: or all that grow could wait for each other's.
    """
    grows = wanting.table.capacity > 0 and not wanting.retired
    names = [
        name
        for name, other in sessions.items()
        if other is not wanting
        and not other.active
        and (other.retired or other.used <= idle_since or (other.preempted and grows))
    ]
    return sorted(
        names,
        key=lambda name: (
            sessions[name] is donor,
            not sessions[name].retired,
            sessions[name].used,
        ),
    )


def to_evict(
    sessions: Mapping[bytes, Session], order: Sequence[bytes], first: Sequence[bytes], lacking: int
) -> list[bytes] | None:
    """Those that have to go for so many positions that are lacking: the `first` ones, and then as
    many of `order` as it takes; None if all of them are not enough.
    """
    leaving = list(first)
    lacking -= sum(sessions[name].table.capacity for name in leaving)
    for name in (name for name in order if name not in first):
        if lacking <= 0:
            break
        leaving.append(name)
        lacking -= sessions[name].table.capacity
    return leaving if lacking <= 0 else None
