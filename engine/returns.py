"""Who was answered and may be back in a moment: then they share a step again.

Pure. Sessions that miss each other's steps take turns, and each turn reads all weights: with two
turns a round lasts two steps, with one it lasts a step and the time until the last is back. So it
pays to wait for as long as a step takes that has next to nothing to do, if they come back by then.
"""

from __future__ import annotations

from collections.abc import Iterable

LIKELY = 0.7  # the share that came back in time, from which on it is worth waiting
MEMORY = 16.0  # answers that are remembered


class Returns:
    """When sessions were answered, and how many of them came back in time."""

    def __init__(self) -> None:
        self._patience = 0.0
        self._left: dict[bytes, float] = {}  # when, by session
        self._punctual = 1.0  # the share that came back in time

    def answered(self, sessions: Iterable[bytes], now: float, patience: float) -> None:
        """A step is over; who was answered may take `patience` seconds from `now`."""
        self._patience = patience
        self._left.update(dict.fromkeys(sessions, now))

    def back(self, session: bytes, at: float) -> None:
        """A session's next call came in."""
        if (left := self._left.pop(session, None)) is not None:
            self._judge(at - left <= self._patience)

    def wait(self, here: set[bytes], now: float) -> float:
        """Seconds until there is nobody left to wait for, as things stand; 0 if it is not worth it.
        Whoever is `here` has come back and is not yet at work.
        """
        due = {s: at + self._patience for s, at in self._left.items() if s not in here}
        for session, until in due.items():
            if until < now:
                del self._left[session]
                self._judge(False)
        if self._punctual < LIKELY:
            return 0.0
        return max(0.0, max(due.values(), default=now) - now)

    def _judge(self, punctual: bool) -> None:
        self._punctual += (punctual - self._punctual) / MEMORY
