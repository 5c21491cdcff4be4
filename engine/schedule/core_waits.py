"""Learns how long a thread waits for a processor core: the seconds of waiting for each second of
running.

While a thread runs, other threads wait for its core about as long as the thread itself waits for
theirs, because the system shares cores evenly. So the figure also says what a second of the thread
takes from others: nothing where it has a core of its own, a second where two threads share one.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HORIZON = 1.0  # seconds of running after which an observation counts for 1/e
SCHEDULED = Path("/proc/thread-self/schedstat")  # Linux: nanoseconds of running, and of waiting


def thread_seconds() -> tuple[float, float]:
    """Return how long the calling thread has run and has waited for a core since it began; zeros
    where the system does not tell.
    """
    with suppress(OSError, ValueError):
        ran, waited, _ = map(int, SCHEDULED.read_text().split())
        return ran / 1e9, waited / 1e9
    return 0.0, 0.0


@dataclass(slots=True)
class CoreWaits:
    """The recent seconds of running and of waiting of one thread; newer ones count more."""

    running: float = 0.0
    waiting: float = 0.0
    _ran: float = 0.0  # what the thread had run, and had waited, at the newest observation
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
