"""Learns how long a thread waits for a processor core: the seconds of waiting for each second of
running.

Other threads wait for a thread's core about as long as the thread waits for their cores, because
the system shares cores evenly. Therefore the ratio also says how many seconds other threads lose
for each second that the thread runs: none if the thread has a core of its own, and one if two
threads share a core.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HORIZON = 1.0  # seconds of running after which an observation counts for 1/e
SCHEDULED = Path("/proc/thread-self/schedstat")  # Linux: nanoseconds of running, and of waiting


def thread_seconds() -> tuple[float, float]:
    """Return how many seconds the calling thread has run, and has waited for a core, since it
    began. Return zeros if the system does not report these times.
    """
    with suppress(OSError, ValueError):
        ran, waited, _ = map(int, SCHEDULED.read_text().split())
        return ran / 1e9, waited / 1e9
    return 0.0, 0.0


@dataclass(slots=True)
class CoreWaits:
    """The recent seconds that one thread has run and has waited. Newer seconds count more."""

    running: float = 0.0
    waiting: float = 0.0
    _ran: float = 0.0  # what the thread had run and had waited at the newest observation
    _waited: float = 0.0

    def observe(self, ran: float, waited: float) -> None:
        """Note how long the thread has run and has waited since it began, in seconds."""
        keep = math.exp((self._ran - ran) / HORIZON)
        self.running = keep * self.running + ran - self._ran
        self.waiting = keep * self.waiting + waited - self._waited
        self._ran, self._waited = ran, waited

    @property
    def ratio(self) -> float:
        """The seconds of waiting for each second of running; 0 before anything is known."""
        return self.waiting / self.running if self.running else 0.0
