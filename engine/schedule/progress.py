"""What the model thread reports: each of its steps, and that it goes on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.protos.streams import PassTimes

STALL_SECONDS = 1.5  # health is NOT_SERVING within 2 s
STALL_FACTOR = 8.0  # times as long as was predicted
FAILED_STEPS = 5  # in a row, after which the device is taken for broken
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
    """When the thread last went on; how many seconds the pass that it began was predicted to take,
    0: it began none; the same of a pass over a single token, 0: not known; and what is known of the
    pass before, if there has been work since.
    """

    since: float
    predicted: float = 0.0
    light: float = 0.0
    before: PassTimes | None = None

    def rested(self, now: float) -> Progress:
        """The thread has no work."""
        return Progress(now, light=self.light)

    def resumed(self, now: float) -> Progress:
        """The thread goes on with its work, and has not begun the next pass."""
        before = self._running(now) if self.predicted else self.before
        return Progress(now, light=self.light, before=before)

    def began(self, now: float, predicted: float, light: float) -> Progress:
        """The thread begins a pass; 0 seconds predicted: nothing is known yet."""
        return Progress(now, predicted or UNKNOWN_SECONDS, light or self.light, self.before)

    def passes(self, now: float) -> PassTimes:
        """How long they take."""
        before = self.before or PassTimes(0.0, self.light)
        return max(before, self._running(now), key=lambda times: times.newest)

    def _running(self, now: float) -> PassTimes:
        if not self.predicted:
            return PassTimes()
        seconds = now - self.since
        return PassTimes(seconds, self.light * max(1.0, seconds / self.predicted))

    def problem(self, now: float) -> str | None:
        """Why the thread is taken for stalled, if it is."""
        allowed = max(STALL_SECONDS, STALL_FACTOR * self.predicted)
        if now - self.since <= allowed:
            return None
        return f"the model thread has been in one step for more than {allowed:.1f} s"


@dataclass(slots=True)
class Failures:
    """Steps that have failed since the last one that did not; `problem`: why the device is taken
    for broken, None if it is not.
    """

    count: int = 0
    problem: str | None = None

    def too_many(self, error: Exception) -> bool:
        """Another one has failed; whether no more are to be tried."""
        self.count += 1
        if self.count == FAILED_STEPS:
            last = f"{type(error).__name__}: {error}".splitlines()[0]
            self.problem = f"{FAILED_STEPS} steps in a row have failed, the last with {last}"
        return self.problem is not None
