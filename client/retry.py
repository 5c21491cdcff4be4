"""When to ask again, and how long to wait first. Pure: time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.protos.errors import Busy, TandemError, is_transient

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds


@dataclass(slots=True)
class Retry:
    """Counts failures since the last progress; gives up when there was none for `limit` seconds."""

    limit: float
    since: float  # of the last progress
    failures: int = 0

    def progress(self, now: float) -> None:
        """Something arrived."""
        self.since, self.failures = now, 0

    def pause(self, error: TandemError, now: float, others: bool, chance: float) -> float | None:
        """Seconds until the next attempt; None: give up. Where there are `others`, one of them is
        asked at once, else after a pause that doubles; a busy one is left alone for as long as it
        asked. `chance`, in [0, 1), spreads those who failed together.
        """
        self.failures += 1
        if not is_transient(error) or now - self.since >= self.limit:
            return None
        if others and self.failures == 1 and not isinstance(error, Busy):
            return 0.0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self.failures - 1)) * (0.5 + chance)
        return max(pause, error.retry_after) if isinstance(error, Busy) else pause
