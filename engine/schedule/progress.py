"""What the model thread reports: each of its steps, and that it goes on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

STALL_SECONDS = 1.5  # health is NOT_SERVING within 2 s
STALL_FACTOR = 8.0  # times as long as was predicted
UNKNOWN_SECONDS = 4.0  # predicted for the first pass, of which nothing is known


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one forward pass did, and the time since the one before if there was work all along."""

    sessions: int
    tokens: int
    seconds: float
    queue_seconds: list[float]
    cost_error: float
    host_seconds: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """When the thread last went on, and how many seconds the pass that it began was predicted to
    take; 0: it began none.
    """

    since: float
    predicted: float = 0.0

    def problem(self, now: float) -> str | None:
        """Why the thread is taken for stalled, if it is."""
        allowed = max(STALL_SECONDS, STALL_FACTOR * self.predicted)
        if now - self.since <= allowed:
            return None
        return f"the model thread has been in one step for more than {allowed:.1f} s"
