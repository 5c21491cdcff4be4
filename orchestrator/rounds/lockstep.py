"""Decides how long a verifier in lockstep waits for a proposal: as long as the proposal may save,
and not at all while proposals come later than that.

In lockstep each step needs a proposal for exactly its length; after an empty proposal the verifier
decodes plainly. While it does not wait, the verifier gets empty proposals for the next steps too,
so that it decodes at its own pace. Proposals that come too late still show how late they are, so a
drafter that recovers is used again. If both models share a processor, a proposal comes later while
the verifier does not wait for it. It could come up to `FAR` times sooner, so now and then the
verifier waits for a proposal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tandem.orchestrator.rounds.stream import Timer, TimerHandle
from tandem.protos.streams import Commit, Proposal

WEIGHT, GAIN_WEIGHT = 0.25, 0.125  # weights of the newest seconds, and tokens, which vary more
OUTLIER = 2.0  # times an average: longer steps count as that long
LONGEST = 2  # times the seconds that a proposal saves: the longest wait for it
OVERDUE = 4  # times the seconds that a proposal may save: the delay of a proposal that did not come
HOPED, HOPED_AGAIN = 2.0, 1.0  # tokens that a proposal may add: at first, and when tried again
TRIAL_STEPS = 64  # steps of one kind, with or without a proposal, before one of the other is tried
FIRST_TRIAL = 8  # plain steps before a wait for a proposal that could be in time; then 16 ...
FAR = 4  # times later that a proposal comes, at most, because the verifier does not wait for it
FIRST_SECONDS = 0.02  # assumed for a step while none is measured
REMEMBERED = 64  # lengths whose proposal may still come
RUN = 32  # plain steps ahead that are measured as one: their commits may arrive together
MOST_AHEAD = 48  # plain steps at most; a verifier keeps 64 proposals of a session


@dataclass(slots=True)
class WaitPolicy:
    """Averages over a generation: the `delay` in seconds from a commit to the proposal after it,
    the tokens that a proposal adds to a step, and the seconds of steps without and with a proposal.
    A step with a proposal includes the `round_trip` to the verifier; plain steps are ordered ahead.
    """

    delay: float = 0.0
    gain: float = HOPED
    plain: float = 0.0  # 0 = not known
    proposed: float = 0.0
    in_a_row: int = 0  # steps of one kind: above 0 those with a proposal, below 0 those without
    round_trip: float = 0.0
    newest: float = math.inf  # delay of the newest proposal; math.inf = it did not come
    pause: int = FIRST_TRIAL  # plain steps before the next trial, per token that a proposal may add
    untried: int = 0  # plain steps since the newest trial
    trying: bool = False  # whether to wait for the next proposal, if it could be in time

    @property
    def seconds(self) -> float:
        """The seconds to wait for the next proposal."""
        most = TRIAL_STEPS if self.plain else 1  # steps with a proposal before one without
        if self.in_a_row >= most:
            return 0.0
        if self.delay <= self.worth:
            return LONGEST * self.worth
        return self.worth if self.trying and self.newest <= FAR * self.worth else 0.0

    @property
    def worth(self) -> float:
        """The seconds that the next proposal may save."""
        plain = self.plain or self.proposed or FIRST_SECONDS
        return (1 + self.gain) * plain - (self.proposed or plain)

    @property
    def steps_ahead(self) -> int:
        """The number of plain steps that the verifier may take by itself: one at first, then one
        more after each step, up to the number that it takes in two round trips.
        """
        enough = 2 + 2 * self.round_trip / (self.plain or FIRST_SECONDS)
        return int(min(1 + max(0, -self.in_a_row), enough, MOST_AHEAD))

    def no_drafter(self) -> None:
        """Note that there is no drafter, so that plain steps do not lead to a trial."""
        self.pause, self.untried, self.trying = FIRST_TRIAL, 0, False

    def came(self, delay: float, waited: bool = False) -> None:
        """Note that a proposal came so many seconds after its commit. `waited` tells whether the
        verifier waited for it.
        """
        self.newest = delay
        if waited and self.trying:
            self.delay, self.trying = delay, False
        seen = delay if waited else min(max(self.delay, delay / FAR), delay)
        self.delay += WEIGHT * (seen - self.delay)

    def missed(self) -> None:
        """Note that the proposal that the verifier waited for did not come in time."""
        self.trying = False
        most = max(HOPED * (self.plain or FIRST_SECONDS), self.worth)
        self.came(OVERDUE * most, waited=True)
        self.newest = math.inf

    def stepped(self, seconds: float, commit: Commit) -> None:
        """Learn from a step that took so long, 0 = not measured. The first step of an opening does
        not count, because it reads the context too.
        """
        if commit.epoch:
            return
        if commit.drafted:
            self.proposed = _average(self.proposed, seconds)
            self.gain += GAIN_WEIGHT * (len(commit.tokens) - 1 - self.gain)
            self.in_a_row = max(0, self.in_a_row) + 1
            if self.in_a_row == FIRST_TRIAL:
                self.pause = FIRST_TRIAL
        else:
            most = OUTLIER * self.proposed if self.proposed and not self.plain else seconds
            self.plain = _average(self.plain, min(seconds, most)) if seconds else self.plain
            self.in_a_row = min(0, self.in_a_row) - 1
            self.untried += 1
            if self.untried >= self.pause * max(1.0, self.gain):  # a trial may cost as much
                self.untried, self.pause, self.trying = 0, 2 * self.pause, True
            if self.in_a_row % TRIAL_STEPS == 0:
                self.gain = max(self.gain, HOPED_AGAIN)
                self.proposed = min(self.proposed, self.plain + self.round_trip)


def _average(known: float, newest: float) -> float:
    return known + WEIGHT * (min(newest, OUTLIER * known) - known) if known else newest


class Lockstep:
    """The lockstep of one generation. `send` sends the verifier a proposal to verify."""

    def __init__(self, timer: Timer, send: Callable[[Proposal], None]) -> None:
        self.policy = WaitPolicy()
        self._timer, self._send = timer, send
        self._asked: dict[int, float] = {}  # length -> when it was reached
        self._length = -1  # the length that was reached last
        self._answered = -1  # the longest length that the verifier has a proposal for
        self._began = -1.0  # when the verifier could begin its newest steps; below 0 = it waits
        self._ahead = 0  # the number of these steps, if their proposals were sent ahead
        self._handle: TimerHandle | None = None

    def wait(self, length: int, drafting: bool, round_trip: float = 0.0) -> None:
        """Wait for a proposal for this length, or send an empty one, unless the verifier has a
        proposal. `drafting` tells whether a drafter makes one; `round_trip` is the seconds to the
        verifier and back.
        """
        self.stop()
        self.policy.round_trip = round_trip
        if length != self._length:
            self._reached(length)
        while len(self._asked) > REMEMBERED:
            del self._asked[next(iter(self._asked))]
        if not drafting:
            self.policy.no_drafter()
        seconds = self.policy.seconds if drafting else 0.0
        if not seconds:
            self._answer(length, self.policy.steps_ahead)
        elif length > self._answered:
            self._handle = self._timer.call_later(seconds, partial(self._give_up, length))

    def takes(self, behind: int, length: int) -> bool:
        """Note that a proposal for the length `behind` came. Returns whether the verifier waits for
        it, at `length`.
        """
        now = self._timer.now()
        taken = behind == length > self._answered
        if (asked := self._asked.pop(behind, None)) is not None:
            self.policy.came(now - asked, taken)
        if not taken:
            return False
        self.stop()
        self._asked.clear()
        self._answered, self._began = length, now
        return True

    def opened(self) -> None:
        """Note that the verifier was opened and so has no proposal."""
        self.stop()
        self._length, self._answered, self._began = -1, -1, -1.0

    def stepped(self, commit: Commit) -> None:
        """Note that the verifier has taken a step."""
        if self._began < 0:
            return
        seconds, round_trip = self._timer.now() - self._began, self.policy.round_trip
        if self._ahead:
            seconds = seconds / RUN if self._ahead == RUN else 0.0
        elif not commit.drafted and seconds > round_trip:
            seconds -= round_trip
        self.policy.stepped(seconds, commit)

    def stop(self) -> None:
        """Cancel the timer: send no empty proposal."""
        if self._handle:
            self._handle.cancel()
            self._handle = None

    def _reached(self, length: int) -> None:
        now = self._timer.now()
        self._length, self._asked[length] = length, now
        if length > self._answered:
            self._began, self._ahead = -1.0, 0
        elif 0 < self._ahead < RUN:
            self._ahead += 1
        else:
            self._began, self._ahead = now, 1

    def _give_up(self, length: int) -> None:
        self.policy.missed()
        self._answer(length, 1)

    def _answer(self, length: int, steps: int) -> None:
        """Have the verifier decode so many steps plainly; each adds one token."""
        if length > self._answered:
            self._began = self._timer.now()
        for place in range(max(self._answered + 1, length), length + steps):
            self._answered = place
            self._send(Proposal(place))
