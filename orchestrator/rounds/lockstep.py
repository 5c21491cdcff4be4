"""Decides how long a verifier in lockstep waits for a proposal. While proposals come too late to
save time, the verifier does not wait.

In lockstep, each step needs a proposal for exactly the current length of the text. With an empty
proposal, the verifier decodes without a draft. While the verifier does not wait, it also gets empty
proposals for the next steps, so that it decodes at its own pace. The delay of late proposals is
still measured, so that a drafter is used again once it is fast enough. If both models share a
processor, a verifier that does not wait delays proposals by a factor of up to MAX_SLOWDOWN. From
time to time, the verifier therefore waits for one proposal as a trial.

`WaitPolicy` keeps the averages and decides how long to wait; it uses no clock. `Lockstep` measures
the times for the policy, and sends the empty proposals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tandem.orchestrator.rounds.stream import Timer, TimerHandle
from tandem.protos.streams import Commit, Proposal

SECONDS_WEIGHT, GAIN_WEIGHT = 0.25, 0.125  # weights of the newest value in moving averages
OUTLIER_FACTOR = 2.0  # step times are capped at this many times their average
WAIT_FACTOR = 2  # maximum wait for a proposal, as a multiple of the time that it should save
MISSED_FACTOR = 4  # assumed delay of a missing proposal, as a multiple of the time it could save
FIRST_GAIN, TRIAL_GAIN = 2.0, 1.0  # assumed tokens gained per proposal: at first, in later trials
TRIAL_STEPS = 64  # after this many steps of one kind, drafted or plain, the other kind is tried
FIRST_TRIAL = 8  # steps without a draft before the first trial; the number then doubles
MAX_SLOWDOWN = 4  # a verifier that does not wait delays proposals by at most this factor
ASSUMED_STEP_SECONDS = 0.02  # assumed seconds of a step until one is measured
MAX_PENDING = 64  # maximum number of lengths whose proposals are still expected
RUN_STEPS = 32  # plain steps measured together, because their commits may arrive at once
MAX_STEPS_AHEAD = 48  # limit on empty proposals sent in advance; a verifier keeps 64 per session


@dataclass(slots=True)
class WaitPolicy:
    """Averages over a generation. `delay` is the number of seconds from a commit to the next
    proposal. `gain` is the number of tokens that a proposal adds to a step. The duration of a step
    with a draft includes the `round_trip` to the verifier. The duration of a plain step, which has
    no draft, excludes the round trip, because its empty proposal is sent in advance.
    """

    delay: float = 0.0
    gain: float = FIRST_GAIN
    plain_seconds: float = 0.0  # seconds of a step without a draft; 0 means not known
    drafted_seconds: float = 0.0  # seconds of a step with a draft; 0 means not known
    in_a_row: int = 0  # number of successive steps with a draft; negative: without a draft
    round_trip: float = 0.0
    newest_delay: float = math.inf  # delay of the newest proposal; math.inf if it is missing
    trial_interval: int = FIRST_TRIAL  # number of plain steps before a trial, divided by `gain`
    steps_since_trial: int = 0  # steps without a draft since the newest trial
    trial_due: bool = False  # whether to wait for the next proposal as a trial

    @property
    def wait_seconds(self) -> float:
        """The number of seconds for which the verifier waits for the next proposal."""
        # maximum number of successive steps with a draft before a plain step is tried
        most_drafted = TRIAL_STEPS if self.plain_seconds else 1
        if self.in_a_row >= most_drafted:
            return 0.0
        if self.delay <= self.saving:
            return WAIT_FACTOR * self.saving
        could_be_in_time = self.newest_delay <= MAX_SLOWDOWN * self.saving
        return self.saving if self.trial_due and could_be_in_time else 0.0

    @property
    def saving(self) -> float:
        """The number of seconds that the next proposal is expected to save."""
        plain = self.plain_seconds or self.drafted_seconds or ASSUMED_STEP_SECONDS
        return (1 + self.gain) * plain - (self.drafted_seconds or plain)

    @property
    def steps_ahead(self) -> int:
        """The number of steps for which the verifier gets empty proposals in advance. At first
        and after a step with a draft, this number is one. Each successive plain step adds one,
        until the empty proposals last for about two round trips.
        """
        enough = 2 + 2 * self.round_trip / (self.plain_seconds or ASSUMED_STEP_SECONDS)
        return int(min(1 + max(0, -self.in_a_row), enough, MAX_STEPS_AHEAD))

    def no_drafter(self) -> None:
        """Reset the trials, because there is no drafter whose proposals could be tried."""
        self.trial_interval, self.steps_since_trial, self.trial_due = FIRST_TRIAL, 0, False

    def proposal_came(self, delay: float, waited: bool = False) -> None:
        """Update the average delay with a proposal that came `delay` seconds after its commit.
        `waited` tells whether the verifier waited for the proposal.
        """
        self.newest_delay = delay
        if waited and self.trial_due:
            self.delay, self.trial_due = delay, False
        seen = delay if waited else min(max(self.delay, delay / MAX_SLOWDOWN), delay)
        self.delay += SECONDS_WEIGHT * (seen - self.delay)

    def proposal_missed(self) -> None:
        """Record that the proposal for which the verifier waited did not arrive in time."""
        self.trial_due = False
        saving = max(FIRST_GAIN * (self.plain_seconds or ASSUMED_STEP_SECONDS), self.saving)
        self.proposal_came(MISSED_FACTOR * saving, waited=True)
        self.newest_delay = math.inf

    def learn_step(self, seconds: float, commit: Commit) -> None:
        """Update the averages with a step that took `seconds` seconds; 0 means not measured. The
        first step of an opening is ignored, because it also processes the context.
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
        # A trial waits longer if the gain is larger, so the next trial then comes later.
        if self.steps_since_trial >= self.trial_interval * max(1.0, self.gain):
            self.steps_since_trial, self.trial_due = 0, True
            self.trial_interval *= 2
        if self.in_a_row % TRIAL_STEPS == 0:
            self.gain = max(self.gain, TRIAL_GAIN)
            self.drafted_seconds = min(self.drafted_seconds, self.plain_seconds + self.round_trip)


def _smoothed(average: float, newest: float) -> float:
    """Return the updated moving average; 0 means that it has no values yet. Outliers are capped."""
    if not average:
        return newest
    return average + SECONDS_WEIGHT * (min(newest, OUTLIER_FACTOR * average) - average)


class Lockstep:
    """Calls `send` with empty proposals for one generation's verifier if waiting does not pay.

    A length is a number of committed tokens. Each step needs a proposal for the current length. If
    the verifier waits for a proposal, the time of the step begins when the proposal is sent. Plain
    steps whose empty proposals were sent in advance follow each other without a wait, but their
    commits may arrive together. RUN_STEPS plain steps are therefore measured as one run.
    """

    def __init__(self, timer: Timer, send: Callable[[Proposal], None]) -> None:
        self.policy = WaitPolicy()
        self._timer = timer
        self._send = send
        self._pending: dict[int, float] = {}  # time at which each length was reached
        self._length = -1  # the length that was reached last
        self._supplied = -1  # the longest length that the verifier has a proposal for
        self._measured_since = -1.0  # start of the measured step or run; negative if there is none
        self._run_steps = 0  # number of steps in the current run; 0 outside a run
        self._handle: TimerHandle | None = None  # timer that ends the wait

    def wait(self, length: int, drafting: bool, round_trip: float = 0.0) -> None:
        """Start to wait for the drafter's proposal for this length, or send empty proposals for
        this length and the next ones. Lengths for which the verifier has a proposal are skipped.
        `drafting` tells whether a drafter makes a proposal. `round_trip` is the number of seconds
        to the verifier and back.
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
        """Record a proposal made for the length `behind`. The text now has `length` tokens.
        Returns whether the verifier waits for this proposal, in which case the caller must send it.
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
        """Reset the state for a new stream, for which the verifier has no proposals yet."""
        self.stop()
        self._length, self._supplied, self._measured_since = -1, -1, -1.0

    def committed(self, commit: Commit) -> None:
        """Measure the step that the verifier has finished with `commit`. At the last step of a run,
        the policy gets the mean duration of the run's steps. For a step outside a run, the policy
        gets the step's own duration, without the round trip if the step had no draft.
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
        """Cancel the timer that would send an empty proposal."""
        if self._handle:
            self._handle.cancel()
            self._handle = None

    def _reach(self, length: int) -> None:
        """Record that the text has a new length, at which the verifier begins its next step or
        waits for a proposal.
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
