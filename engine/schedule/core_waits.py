"""Measures how many seconds a thread waits for a processor core per second that it runs.

The system shares cores evenly, so other threads wait for this thread about as long as it waits for
them. Therefore the ratio of waiting to running time also tells how many seconds other threads lose
per second that this thread runs: 0 if the thread has a core of its own, and 1 if two threads share
a core.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HORIZON = 1.0  # seconds of running after which the weight of an observation is 1/e
SCHEDULED = Path("/proc/thread-self/schedstat")  # Linux: nanoseconds run, nanoseconds waited


def thread_seconds() -> tuple[float, float]:
    """Return how many seconds the calling thread has run, and how many seconds it has waited for a
    core, since it began. Return zeros if the system does not report these times.
    """
    with suppress(OSError, ValueError):
        ran, waited, _ = map(int, SCHEDULED.read_text().split())
        return ran / 1e9, waited / 1e9
    return 0.0, 0.0


@dataclass(slots=True)
class CoreWaits:
    """Decaying sums of the seconds that a thread has run and has waited for a core. Recent seconds
    count more.
    """

    running: float = 0.0
    waiting: float = 0.0
    _ran: float = 0.0  # seconds run and waited up to the newest observation
    _waited: float = 0.0

    def observe(self, ran: float, waited: float) -> None:
        """Record the total seconds that the thread has run and has waited for a core since it
        began.
        """
        keep = math.exp((self._ran - ran) / HORIZON)
        self.running = keep * self.running + ran - self._ran
        self.waiting = keep * self.waiting + waited - self._waited
        self._ran, self._waited = ran, waited

    @property
    def ratio(self) -> float:
        """The ratio of waiting time to running time; 0 until there are measurements."""
        return self.waiting / self.running if self.running else 0.0
