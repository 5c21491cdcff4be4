"""When a request that was refused may come back. Pure: time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN_SECONDS = 0.5
SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 10.0
WEIGHT = 0.1  # of the newest pause


@dataclass(slots=True)
class Turnover:
    """The usual seconds between two ends, and how many refused requests may come back."""

    seconds: float | None = None
    refused: int = 0
    last: float | None = None

    def ended(self, now: float) -> None:
        """A request ended, so that another one may come."""
        if self.last is not None:
            pause = min(now - self.last, LONGEST_SECONDS)
            usual = pause if self.seconds is None else self.seconds
            self.seconds = usual + WEIGHT * (pause - usual)
        self.last = now
        self.refused = max(0, self.refused - 1)

    def retry_after(self) -> float:
        """Seconds for one more that is refused: until as many have ended as were refused before,
        so that they do not all come back together.
        """
        if self.seconds is None:
            return UNKNOWN_SECONDS
        delay = (self.refused + 1) * self.seconds
        if delay < LONGEST_SECONDS:
            self.refused += 1
        return min(max(SHORTEST_SECONDS, delay), LONGEST_SECONDS)
