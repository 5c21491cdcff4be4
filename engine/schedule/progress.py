"""Reports about the model thread: what each step did, and whether the thread is stalled or fails.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.protos.streams import PassTimes

# a step counts as stalled only after this many seconds; health is then NOT_SERVING within 2 s
STALL_SECONDS = 1.5
STALL_FACTOR = 8.0  # a step counts as stalled when it takes this many times the predicted seconds
FAILED_STEPS = 5  # number of consecutive failures after which the device counts as broken
UNKNOWN_SECONDS = 4.0  # assumed seconds of a pass that cannot be predicted yet


@dataclass(frozen=True, slots=True)
class StepReport:
    """The load and times of one forward pass. `host_seconds` is the time since the previous pass
    ended, or None if the thread was idle in between.
    """

    sessions: int
    tokens: int
    seconds: float
    queue_seconds: list[float]
    cost_error: float
    host_seconds: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """The current state of the model thread. The state began at the time `since`. The running pass
    is predicted to take `predicted` seconds; 0 means that no pass is running. A pass over a single
    token takes `single_token` seconds; 0 means that this time is unknown. `before` holds the times
    of the previous pass, or None if the thread was idle after that pass.
    """

    since: float
    predicted: float = 0.0
    single_token: float = 0.0
    before: PassTimes | None = None

    def rested(self, now: float) -> Progress:
        """Return the state of a thread that has no work."""
        return Progress(now, single_token=self.single_token)

    def resumed(self, now: float) -> Progress:
        """Return the state of a thread that has work and has not started the next pass."""
        before = self._running(now) if self.predicted else self.before
        return Progress(now, single_token=self.single_token, before=before)

    def began(self, now: float, predicted: float, single_token: float) -> Progress:
        """Return the state of a thread that starts a pass; `predicted` is 0 if the duration of the
        pass cannot be predicted.
        """
        single_token = single_token or self.single_token
        return Progress(now, predicted or UNKNOWN_SECONDS, single_token, self.before)

    def passes(self, now: float) -> PassTimes:
        """Return the times of the running pass or of the previous pass, whichever took longer."""
        before = self.before or PassTimes(0.0, self.single_token)
        return max(before, self._running(now), key=lambda times: times.newest)

    def _running(self, now: float) -> PassTimes:
        if not self.predicted:
            return PassTimes()
        seconds = now - self.since
        return PassTimes(seconds, self.single_token * max(1.0, seconds / self.predicted))

    def problem(self, now: float) -> str | None:
        """Return the reason why the thread counts as stalled, or None if it does not."""
        allowed = max(STALL_SECONDS, STALL_FACTOR * self.predicted)
        if now - self.since <= allowed:
            return None
        return f"the model thread has been in one step for more than {allowed:.1f} s"


@dataclass(slots=True)
class Failures:
    """Counts the failed steps since the last successful step. `problem` is the reason why the
    device counts as broken, or None if it does not.
    """

    count: int = 0
    problem: str | None = None

    def too_many(self, error: Exception) -> bool:
        """Count a failed step; return whether the thread should give up."""
        self.count += 1
        if self.count == FAILED_STEPS:
            last = f"{type(error).__name__}: {error}".splitlines()[0]
            self.problem = f"{FAILED_STEPS} steps in a row have failed, the last with {last}"
        return self.problem is not None
