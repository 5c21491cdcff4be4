"""In simulated time, a slow or silent drafter costs a session in lockstep almost nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandem.orchestrator.rounds.lockstep import MAX_PENDING, Lockstep
from tandem.protos.streams import Commit, Proposal
from tests.laws.wires import Clock

# seconds of a step, tokens that a proposal adds to it, and nodes of a proposal
STEP, ADDED, NODES = 0.015, 2, 4
NEVER = float("inf")


class Round:
    """A verifier and a drafter whose proposals take `delay` seconds at the time; NEVER means that
    there is no drafter. A step and a round trip to the verifier take the given seconds.
    """

    def __init__(
        self,
        delay: Callable[[float], float],
        added: int = ADDED,
        round_trip: Callable[[float], float] = lambda now: 0.0,
        step: Callable[[float], float] = lambda now: STEP,
    ) -> None:
        self.clock = Clock()
        self.delay, self.added, self.round_trip, self.step = delay, added, round_trip, step
        self.length, self.plain, self.drafted = 0, 0, 0
        self.reached, self.busy = 0, False  # the verifier's length, and whether it is in a step
        self.inbox: dict[int, int] = {}  # the verifier's inbox: number of nodes by length
        self.times = [0.0]
        self.lockstep = Lockstep(self.clock, lambda proposal: self.send(proposal.behind, 0))
        self.begin()

    def begin(self) -> None:
        """Have the drafter begin to propose, and the verifier wait."""
        length, delay = self.length, self.delay(self.clock.time)
        if delay < NEVER:
            self.clock.call_later(delay, lambda: self.proposal(length))
        self.lockstep.wait(length, True, self.round_trip(self.clock.time))

    def proposal(self, behind: int) -> None:
        """Let a proposal come, in time or late."""
        if self.lockstep.proposal_came(behind, self.length):
            self.send(behind, NODES)

    def send(self, behind: int, nodes: int) -> None:
        """Send a proposal to the verifier."""
        assert behind not in self.inbox and behind >= self.length
        self.inbox[behind] = -1
        self.later(lambda: self.arrive(behind, nodes))

    def arrive(self, behind: int, nodes: int) -> None:
        """Let a proposal arrive at the verifier."""
        self.inbox[behind] = nodes
        self.go()

    def go(self) -> None:
        """Start a step of the verifier if it may step."""
        if not self.busy and (nodes := self.inbox.get(self.reached, -1)) >= 0:
            self.busy = True
            self.drafted += nodes > 0
            self.plain += nodes == 0
            self.clock.call_later(self.step(self.clock.time), lambda: self.stepped(nodes))

    def stepped(self, nodes: int) -> None:
        """End a step."""
        tokens = 1 + self.added * (nodes > 0)
        commit = Commit(self.reached, (0,) * tokens, nodes)
        self.busy, self.reached = False, self.reached + tokens
        self.times += [self.clock.time] * tokens
        self.later(lambda: self.learn(commit))
        self.go()

    def learn(self, commit: Commit) -> None:
        """Update the estimates as the round worker does."""
        self.lockstep.committed(commit)
        self.length += len(commit.tokens)
        self.begin()

    def later(self, call: Callable[[], None]) -> None:
        """Call a function half a round trip later."""
        self.clock.call_later(self.round_trip(self.clock.time) / 2, call)

    def seconds(self, start: int, end: int) -> float:
        """Return the seconds per token between two tokens."""
        self.clock.pass_until(lambda: self.length >= end, NEVER)
        return self.times[end] - self.times[start]

    def tokens(self, start: float, end: float) -> float:
        """Return the tokens per second between two times."""
        self.clock.pass_until(lambda: self.clock.time >= end, NEVER)
        return sum(start < time <= end for time in self.times) / (end - start)


def test_proposals_that_are_worth_it_are_waited_for() -> None:
    round_ = Round(lambda now: 0.012)
    assert round_.seconds(0, 300) < 110 * (STEP + 0.012)
    assert round_.plain <= 2, "one of them shows what a plain step takes"


@pytest.mark.parametrize("delay", [0.001, 0.01, 0.02, 0.04, 0.06, 0.1, 0.15, 0.2, 2.0, NEVER])
def test_no_delay_makes_it_slower_than_plain_decoding_after_32_tokens(delay: float) -> None:
    round_ = Round(lambda now: delay)
    assert round_.seconds(32, 332) < 300 * STEP / 0.95
    assert delay < 0.2 or round_.drafted == 0


@pytest.mark.parametrize("delay", [0.001, 0.006, 0.012])
def test_proposals_are_not_waited_for_while_they_add_nothing(delay: float) -> None:
    round_ = Round(lambda now: delay, added=0)
    assert round_.seconds(32, 332) < 300 * STEP / 0.95
    assert round_.drafted >= 3, "they are tried at first"
    round_.added = ADDED
    assert round_.seconds(400, 700) < 110 * (STEP + 0.012)


@pytest.mark.parametrize("slow", [0.2, NEVER])
def test_a_drafter_that_recovers_is_waited_for_again_at_once(slow: float) -> None:
    round_ = Round(lambda now: slow if now < 3 else 0.012)
    round_.seconds(0, 260)
    back = next(place for place, time in enumerate(round_.times) if time > 3.3)
    assert round_.seconds(back, back + 300) < 110 * (STEP + 0.012)


def test_where_proposals_are_late_only_while_nobody_waits_a_bad_moment_is_soon_over() -> None:
    """The models share a processor: the drafter is slow while the verifier decodes without
    drafts.
    """

    def delay(now: float) -> float:
        return 0.15 if 1 < now < 1.1 else 0.012 if round_.lockstep.policy.wait_seconds else 0.05

    round_ = Round(lambda now: 0.012)
    round_.delay = delay
    round_.seconds(0, 200)
    bad = next(place for place, time in enumerate(round_.times) if time > 1)
    assert round_.seconds(bad + 32, bad + 332) < 110 * (STEP + 0.012)


@pytest.mark.parametrize("added", [ADDED, 8, 24])
@pytest.mark.parametrize("times", [1.5, 2.5, 4.5, NEVER])
def test_a_drafter_that_becomes_slow_is_not_waited_for_however_long_its_drafts(
    added: int, times: float
) -> None:
    """The proposals came in time at first; then they are `times` as late as the time that they
    save.
    """
    round_ = Round(lambda now: 0.012 if now < 2 else times * added * STEP, added)
    round_.tokens(0, 4)
    late = next(place for place, time in enumerate(round_.times) if time > 2.5)
    assert round_.seconds(late + 32, late + 332) < 300 * STEP / 0.9 + 4 * added * STEP


@pytest.mark.parametrize("round_trip", [0.0, 0.002, 0.02, 0.2, 0.4])
@pytest.mark.parametrize("delay", [0.01, NEVER])
def test_no_round_trip_makes_it_slower_than_plain_decoding(round_trip: float, delay: float) -> None:
    """The compared runs have no drafter, or one whose proposals are not worth the round trip."""
    round_ = Round(lambda now: delay, round_trip=lambda now: round_trip)
    assert round_.seconds(100, 400) < 300 * STEP / 0.95


@pytest.mark.parametrize("far", [True, False], ids=["far", "slow"])
def test_a_verifier_that_was_far_or_slow_for_a_while_is_sent_proposals_again(far: bool) -> None:
    def bad(now: float) -> bool:
        return 2 < now < 4

    round_ = Round(
        lambda now: 0.01,
        round_trip=lambda now: 0.2 if far and bad(now) else 0.004,
        step=lambda now: STEP * (1 if far or not bad(now) else 5),
    )
    before = round_.tokens(1, 2)
    assert round_.tokens(8, 12) > 0.9 * before > 1.2 / STEP


def test_commits_that_arrive_together_do_not_make_plain_steps_look_fast() -> None:
    """The link delivers the commits of ten steps at a time."""
    clock = Clock()
    lockstep = Lockstep(clock, lambda proposal: None)
    lockstep.wait(0, False, 0.13)
    for length in range(1, 400):
        clock.time = STEP * 10 * -(-length // 10)
        lockstep.committed(Commit(length - 1, (0,)))
        lockstep.wait(length, False, 0.13)
        assert STEP / 2 < lockstep.policy.plain_seconds < 2 * STEP or length < 20


def test_what_was_never_answered_is_forgotten() -> None:
    round_ = Round(lambda now: NEVER)
    round_.seconds(0, 3 * MAX_PENDING)
    assert len(round_.lockstep._pending) <= MAX_PENDING


def test_the_verifier_gets_one_proposal_for_a_length_and_none_for_another() -> None:
    """Other proposals of the drafter could push the awaited one out of the verifier's inbox."""
    clock, sent = Clock(), list[Proposal]()
    lockstep = Lockstep(clock, sent.append)
    lockstep.wait(5, True)
    taken = [behind for behind in (4, 6, 5, 5, 7) if lockstep.proposal_came(behind, 5)]
    assert taken == [5]
    lockstep.wait(5, False)
    assert not clock.pass_until(lambda: bool(sent), 10), "when the drafter fails it has one already"
    lockstep.opened()
    lockstep.wait(5, False)
    assert sent == [Proposal(5)], "a verifier that was opened again has none"


def test_once_it_is_over_nothing_is_sent() -> None:
    round_ = Round(lambda now: NEVER)
    round_.lockstep.stop()
    assert not round_.clock.pass_until(lambda: round_.length > 0, 10)
