"""Decides how long a verifier in lockstep waits for a proposal. While proposals come too late to
save time, the verifier does not wait.

In lockstep, each step needs a proposal for exactly the length of the text. After an empty proposal
the verifier decodes plainly, without a draft. While the verifier does not wait, it gets empty
proposals for the next steps too, so that it decodes at its own pace. Proposals that come too late
still show how late they are, so a drafter that recovers is used again. If both models share a
processor, proposals come later while the verifier does not wait for them, by a factor of up to
MAX_SLOWDOWN. Now and then the verifier therefore waits for one proposal, which is a trial.

`WaitPolicy` has the averages and the decisions, and knows no clock. `Lockstep` measures the times
for the policy, and sends the empty proposals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tandem.orchestrator.rounds.stream import Timer, TimerHandle
from tandem.protos.streams import Commit, Proposal

SECONDS_WEIGHT, GAIN_WEIGHT = 0.25, 0.125  # weights of the newest value in an average
OUTLIER_FACTOR = 2.0  # a step counts as at most this many times the average
WAIT_FACTOR = 2  # longest wait for a proposal, in units of the seconds that a proposal saves
MISSED_FACTOR = 4  # assumed delay of a missing proposal, in units of what it may save
FIRST_GAIN, TRIAL_GAIN = 2.0, 1.0  # assumed gain in tokens, at first and in a later trial
TRIAL_STEPS = 64  # steps with (or without) a proposal before the other kind is tried
FIRST_TRIAL = 8  # plain steps before the first trial of a proposal; the number then doubles
MAX_SLOWDOWN = 4  # a drafter may be this many times slower while it is not waited for
ASSUMED_STEP_SECONDS = 0.02  # assumed seconds of a step before any was measured
MAX_PENDING = 64  # most lengths whose proposals are still expected
RUN_STEPS = 32  # plain steps measured as one run, because their commits may come together
MAX_STEPS_AHEAD = 48  # plain steps ordered at once; a verifier keeps 64 proposals of a session


@dataclass(slots=True)
class WaitPolicy:
    """Averages over a generation: the `delay` in seconds from a commit to the proposal after it,
    the `gain` in tokens that a proposal adds to a step, and the seconds of plain steps and of steps
    with a draft. The time of a step with a draft includes the `round_trip` to the verifier. That of
    a plain step does not: it is ordered ahead.
    """

    delay: float = 0.0
    gain: float = FIRST_GAIN
    plain_seconds: float = 0.0  # seconds of a plain step; 0 means not known
    drafted_seconds: float = 0.0  # seconds of a step with a draft; 0 means not known
    in_a_row: int = 0  # steps of one kind in a row: positive with a draft, negative without
    round_trip: float = 0.0
    newest_delay: float = math.inf  # delay of the newest proposal; math.inf if it is missing
    trial_interval: int = FIRST_TRIAL  # plain steps before the next trial, per token of `gain`
    steps_since_trial: int = 0  # plain steps since the newest trial
    trial_due: bool = False  # whether to wait for the next proposal, if it could be in time

    @property
    def wait_seconds(self) -> float:
        """The seconds to wait for the next proposal."""
        # most steps with a draft before a plain step is tried
        most_drafted = TRIAL_STEPS if self.plain_seconds else 1
        if self.in_a_row >= most_drafted:
            return 0.0
        if self.delay <= self.saving:
            return WAIT_FACTOR * self.saving
        could_be_in_time = self.newest_delay <= MAX_SLOWDOWN * self.saving
        return self.saving if self.trial_due and could_be_in_time else 0.0

    @property
    def saving(self) -> float:
        """The seconds that the next proposal may save."""
        plain = self.plain_seconds or self.drafted_seconds or ASSUMED_STEP_SECONDS
        return (1 + self.gain) * plain - (self.drafted_seconds or plain)

    @property
    def steps_ahead(self) -> int:
        """The number of plain steps that the verifier may take by itself: one at first, then one
        more after each step, up to the number that it takes in two round trips.
        """
        enough = 2 + 2 * self.round_trip / (self.plain_seconds or ASSUMED_STEP_SECONDS)
        return int(min(1 + max(0, -self.in_a_row), enough, MAX_STEPS_AHEAD))

    def no_drafter(self) -> None:
        """Note that there is no drafter, so that plain steps do not lead to a trial."""
        self.trial_interval, self.steps_since_trial, self.trial_due = FIRST_TRIAL, 0, False

    def proposal_came(self, delay: float, waited: bool = False) -> None:
        """Note that a proposal came `delay` seconds after its commit. `waited` tells whether the
        verifier waited for the proposal.
        """
        self.newest_delay = delay
        if waited and self.trial_due:
            self.delay, self.trial_due = delay, False
        seen = delay if waited else min(max(self.delay, delay / MAX_SLOWDOWN), delay)
        self.delay += SECONDS_WEIGHT * (seen - self.delay)

    def proposal_missed(self) -> None:
        """Note that the proposal that the verifier waited for did not come in time."""
        self.trial_due = False
        saving = max(FIRST_GAIN * (self.plain_seconds or ASSUMED_STEP_SECONDS), self.saving)
        self.proposal_came(MISSED_FACTOR * saving, waited=True)
        self.newest_delay = math.inf

    def learn_step(self, seconds: float, commit: Commit) -> None:
        """Learn from a step that took `seconds` seconds; 0 means that the time was not measured.
        The first step of an opening does not count, because it reads the context too.
        """
        if commit.epoch:
            return
        if commit.drafted:
            self._learn_drafted_step(seconds, len(commit.tokens) - 1)
        else:
            self._learn_plain_step(seconds)

    def _learn_drafted_step(self, seconds: float, gain: int) -> None:
        self.drafted_seconds = _smoothed(self.drafted_seconds, seconds)
        self.gain += GAIN_WEIGHT * (gain - self.gain)
        self.in_a_row = max(0, self.in_a_row) + 1
        if self.in_a_row == FIRST_TRIAL:
            self.trial_interval = FIRST_TRIAL

    def _learn_plain_step(self, seconds: float) -> None:
        if seconds and self.drafted_seconds and not self.plain_seconds:
            seconds = min(seconds, OUTLIER_FACTOR * self.drafted_seconds)
        if seconds:
            self.plain_seconds = _smoothed(self.plain_seconds, seconds)
        self.in_a_row = min(0, self.in_a_row) - 1
        self.steps_since_trial += 1
        # A trial may cost as much as it may gain, so a larger gain delays the next trial.
        if self.steps_since_trial >= self.trial_interval * max(1.0, self.gain):
            self.steps_since_trial, self.trial_due = 0, True
            self.trial_interval *= 2
        if self.in_a_row % TRIAL_STEPS == 0:
            self.gain = max(self.gain, TRIAL_GAIN)
            self.drafted_seconds = min(self.drafted_seconds, self.plain_seconds + self.round_trip)


def _smoothed(average: float, newest: float) -> float:
    """Update a moving average, which is 0 at first, with the newest value, limiting outliers."""
    if not average:
        return newest
    return average + SECONDS_WEIGHT * (min(newest, OUTLIER_FACTOR * average) - average)


class Lockstep:
    """The lockstep of one generation. `send` sends the verifier a proposal to verify.

    A length is a number of committed tokens, and a step at a length needs a proposal for that
    length. If the verifier has to wait for that proposal, the time of the step begins when the
    proposal is sent. Plain steps whose empty proposals were sent ahead follow each other without a
    wait, but their commits may arrive together, so RUN_STEPS of them are measured as one run.
    """

    def __init__(self, timer: Timer, send: Callable[[Proposal], None]) -> None:
        self.policy = WaitPolicy()
        self._timer = timer
        self._send = send
        self._pending: dict[int, float] = {}  # when each length without a proposal was reached
        self._length = -1  # the length that was reached last
        self._supplied = -1  # the longest length that the verifier has a proposal for
        self._measured_since = -1.0  # start of the step or run; negative while the verifier waits
        self._run_steps = 0  # steps of the run so far; 0 if the verifier waited for the step
        self._handle: TimerHandle | None = None  # timer that ends the wait

    def wait(self, length: int, drafting: bool, round_trip: float = 0.0) -> None:
        """Wait for a proposal for this length, or send an empty one, unless the verifier already
        has a proposal. `drafting` tells whether a drafter makes a proposal. `round_trip` is the
        number of seconds to the verifier and back.
        """
        self.stop()
        self.policy.round_trip = round_trip
        if length != self._length:
            self._reach(length)
        while len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        if not drafting:
            self.policy.no_drafter()
        seconds = self.policy.wait_seconds if drafting else 0.0
        if not seconds:
            self._decode_plainly(length, self.policy.steps_ahead)
        elif length > self._supplied:
            self._handle = self._timer.call_later(seconds, partial(self._give_up, length))

    def proposal_came(self, behind: int, length: int) -> bool:
        """Note that a proposal for the length `behind` came, while the text has `length` tokens.
        Returns whether the verifier waits for the proposal, which the caller must then send.
        """
        now = self._timer.now()
        waited = behind == length > self._supplied
        if (reached_at := self._pending.pop(behind, None)) is not None:
            self.policy.proposal_came(now - reached_at, waited)
        if not waited:
            return False
        self.stop()
        self._pending.clear()
        self._supplied, self._measured_since = length, now
        return True

    def opened(self) -> None:
        """Note that a new stream was opened at the verifier, which has no proposals."""
        self.stop()
        self._length, self._supplied, self._measured_since = -1, -1, -1.0

    def committed(self, commit: Commit) -> None:
        """Note that a commit has come, so the verifier has taken a step. At the last step of a run,
        the policy learns the mean seconds of the run's steps. From a step outside a run, the policy
        learns the step's own seconds, without the round trip if the step was plain.
        """
        if self._measured_since < 0:
            return
        seconds, round_trip = self._timer.now() - self._measured_since, self.policy.round_trip
        if self._run_steps:
            seconds = seconds / RUN_STEPS if self._run_steps == RUN_STEPS else 0.0
        elif not commit.drafted and seconds > round_trip:
            seconds -= round_trip
        self.policy.learn_step(seconds, commit)

    def stop(self) -> None:
        """Cancel the timer: send no empty proposal."""
        if self._handle:
            self._handle.cancel()
            self._handle = None

    def _reach(self, length: int) -> None:
        """Note that the text has a new length, at which the verifier begins its next step or waits
        for a proposal.
        """
        now = self._timer.now()
        self._length, self._pending[length] = length, now
        if length > self._supplied:  # the verifier waits
            self._measured_since, self._run_steps = -1.0, 0
        elif 0 < self._run_steps < RUN_STEPS:  # the verifier's next step belongs to the same run
            self._run_steps += 1
        else:  # the verifier's next step begins a run
            self._measured_since, self._run_steps = now, 1

    def _give_up(self, length: int) -> None:
        self.policy.proposal_missed()
        self._decode_plainly(length, 1)

    def _decode_plainly(self, length: int, steps: int) -> None:
        """Let the verifier take `steps` steps without a draft, each of which adds one token."""
        if length > self._supplied:
            self._measured_since = self._timer.now()
        for position in range(max(self._supplied + 1, length), length + steps):
            self._supplied = position
            self._send(Proposal(position))
