"""In lockstep a drafter that is slow, or says nothing, costs next to nothing; simulated time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandem.orchestrator.rounds.lockstep import REMEMBERED, Lockstep, WaitPolicy
from tandem.protos.streams import Fact, Guess
from tests.laws.wires import Clock

STEP, ADDED = 0.015, 2  # seconds of a step, tokens that a guess adds
NEVER = float("inf")


class Round:
    """A verifier and a drafter whose guesses take as long as `delay` says at the time."""

    def __init__(self, delay: Callable[[float], float], added: int = ADDED) -> None:
        self.clock = Clock()
        self.delay, self.added = delay, added
        self.length, self.plain, self.drafted = 0, 0, 0
        self.waits = True
        self.times = [0.0]
        self.lockstep = Lockstep(self.clock, self.take)
        self.begin()

    def begin(self) -> None:
        """The drafter begins to guess, the verifier waits."""
        length, delay = self.length, self.delay(self.clock.time)
        self.waits = True
        if delay < NEVER:
            self.clock.call_later(delay, lambda: self.guess(length))
        self.lockstep.wait(length, True)

    def guess(self, behind: int) -> None:
        """It comes, in time or late."""
        if self.lockstep.takes(behind, self.length):
            self.step(1 + self.added, 4)

    def take(self, guess: Guess) -> None:
        """An empty one."""
        assert guess.behind == self.length
        self.step(1, 0)

    def step(self, tokens: int, drafted: int) -> None:
        """The verifier takes a step, unless it has begun already."""
        if self.waits:
            self.waits = False
            self.drafted += drafted > 0
            self.plain += drafted == 0
            self.clock.call_later(STEP, lambda: self.fact(tokens, drafted))

    def fact(self, tokens: int, drafted: int) -> None:
        """It is over."""
        self.lockstep.stepped(Fact(self.length, (0,) * tokens, drafted))
        self.length += tokens
        self.times += [self.clock.time] * tokens
        self.begin()

    def seconds(self, start: int, end: int) -> float:
        """Between two tokens."""
        self.clock.pass_until(lambda: self.length >= end, NEVER)
        return self.times[end] - self.times[start]


def test_guesses_that_are_worth_it_are_waited_for() -> None:
    round_ = Round(lambda now: 0.012)
    assert round_.seconds(0, 300) < 110 * (STEP + 0.012)
    assert round_.plain <= 2, "one of them shows what a plain step takes"


@pytest.mark.parametrize("delay", [0.2, 2.0, NEVER])
def test_later_ones_leave_the_speed_of_plain_decoding_after_32_tokens(delay: float) -> None:
    round_ = Round(lambda now: delay)
    assert round_.seconds(32, 332) < 300 * STEP / 0.95
    assert round_.drafted == 0


@pytest.mark.parametrize("delay", [0.001, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15])
def test_no_delay_makes_it_slower_than_plain_decoding(delay: float) -> None:
    assert Round(lambda now: delay).seconds(32, 332) < 300 * STEP / 0.95


@pytest.mark.parametrize("delay", [0.001, 0.01, 0.02, 0.03])
def test_guesses_that_add_nothing_are_not_waited_for(delay: float) -> None:
    round_ = Round(lambda now: delay, added=0)
    assert round_.seconds(32, 332) < 300 * STEP / 0.95
    assert round_.drafted >= 3, "they are tried at first"


def test_guesses_that_begin_to_add_something_are_waited_for_again() -> None:
    round_ = Round(lambda now: 0.012, added=0)
    round_.seconds(0, 300)
    round_.added = ADDED
    assert round_.seconds(400, 700) < 110 * (STEP + 0.012)


def test_a_drafter_that_becomes_slow_is_not_followed() -> None:
    round_ = Round(lambda now: 0.012 if now < 1 else 0.2)
    round_.seconds(0, 200)
    slow = next(place for place, time in enumerate(round_.times) if time > 1)
    assert round_.seconds(slow, slow + 32) < 32 * STEP + 0.3
    assert round_.seconds(slow + 32, slow + 332) < 300 * STEP / 0.95


@pytest.mark.parametrize("slow", [0.2, NEVER])
def test_a_drafter_that_recovers_is_waited_for_again_at_once(slow: float) -> None:
    round_ = Round(lambda now: slow if now < 3 else 0.012)
    round_.seconds(0, 260)
    back = next(place for place, time in enumerate(round_.times) if time > 3.3)
    assert round_.seconds(back, back + 300) < 110 * (STEP + 0.012)


def test_a_first_step_which_reads_the_prompt_says_nothing_of_the_others() -> None:
    policy = WaitPolicy()
    policy.stepped(3.0, Fact(0, (1,), epoch=7))
    assert policy == WaitPolicy()


def test_what_was_never_answered_is_forgotten() -> None:
    round_ = Round(lambda now: NEVER)
    round_.seconds(0, 3 * REMEMBERED)
    assert len(round_.lockstep._asked) <= REMEMBERED


def test_the_verifier_gets_one_guess_for_a_length_and_none_for_another() -> None:
    """What a drafter sends besides could push the one that is waited for out of its inbox."""
    clock, sent = Clock(), list[Guess]()
    lockstep = Lockstep(clock, sent.append)
    lockstep.wait(5, True)
    taken = [behind for behind in (4, 6, 5, 5, 7) if lockstep.takes(behind, 5)]
    assert taken == [5]
    lockstep.wait(5, False)
    assert not clock.pass_until(lambda: bool(sent), 10), "when the drafter fails it has one already"
    lockstep.opened()
    lockstep.wait(5, False)
    assert sent == [Guess(5)], "a verifier that was opened again has none"


def test_a_first_plain_step_that_hiccups_hardly_counts() -> None:
    policy = WaitPolicy()
    policy.stepped(0.02, Fact(0, (1, 2, 3), 4))
    policy.stepped(2.0, Fact(3, (1,)))
    assert policy.seconds < 0.5


def test_once_it_is_over_nothing_is_sent() -> None:
    round_ = Round(lambda now: NEVER)
    round_.lockstep.stop()
    assert not round_.clock.pass_until(lambda: round_.length > 0, 10)
