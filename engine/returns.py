"""Who was answered and may be back in a moment: then they share a step again.

Pure. Sessions that miss each other's steps take turns, and each turn reads all weights: with two
turns a round lasts two steps, with one it lasts a step and the time until the last is back. So it
pays to wait for as long as a step takes that has next to nothing to do, if they come back by then.
"""

from __future__ import annotations

from collections.abc import Iterable

MANY = 1024  # sessions of which is remembered that they were late


class Returns:
    """When sessions were answered, and who of them came back late the last time."""

    def __init__(self) -> None:
        self._patience = 0.0
        self._left: dict[bytes, float] = {}  # when, by session
        self._late: dict[bytes, None] = {}  # in this order

    def answered(self, sessions: Iterable[bytes], now: float, patience: float) -> None:
        """A step is over; who was answered may take `patience` seconds from `now`."""
        self._patience = patience
        self._left.update(dict.fromkeys(sessions, now))

    def back(self, session: bytes, at: float) -> None:
        """A session's next call came in."""
        if (left := self._left.pop(session, None)) is not None:
            self._judge(session, at - left <= self._patience)

    def wait(self, here: set[bytes], now: float) -> float:
        """Seconds until there is nobody left to wait for, as things stand: nobody who was late the
        last time. Whoever is `here` has come back and is not yet at work.
        """
        due = {s: at + self._patience for s, at in self._left.items() if s not in here}
        for session, until in due.items():
            if until < now:
                del self._left[session]
                self._judge(session, False)
        awaited = (until for session, until in due.items() if session not in self._late)
        return max(0.0, max(awaited, default=now) - now)

    def _judge(self, session: bytes, punctual: bool) -> None:
        self._late.pop(session, None)
        if not punctual:
            self._late[session] = None
        if len(self._late) > MANY:
            del self._late[next(iter(self._late))]
