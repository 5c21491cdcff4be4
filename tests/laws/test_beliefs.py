"""Whether drafts pay: with all that they cost, by the size of the crowd, found out at a price."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.beliefs import LESSONS, SETTLING, TRIAL, Beliefs
from orchestrator.goodput import Adaptive, Goodput
from orchestrator.learning import Outcome
from orchestrator.policy import Policy
from tests.laws.test_goodput import MOST, outcome

PLAIN = outcome(asked=False, levels=0, nodes=0, accepted=0, propose_seconds=0.0)


def see(beliefs: Beliefs, told: Outcome, rounds: int, tried: bool = False) -> None:
    """So many rounds of one generation alone."""
    for _ in range(rounds):
        beliefs.saw(told, 1, tried, among_others=False)


def acquainted() -> Beliefs:
    """Drafts of three tokens in 0.03 s, against one in 0.02 s; lessons are over."""
    beliefs = Beliefs()
    see(beliefs, PLAIN, 8)
    see(beliefs, outcome(), 8)
    for rounds in LESSONS:
        assert beliefs.due(1) == (True, rounds)
        see(beliefs, outcome(), rounds)
    return beliefs


@pytest.mark.parametrize("length", [5, 50, 500])
def test_reading_prompts_is_part_of_what_drafts_cost(length: int) -> None:
    """Short generations gain less."""
    beliefs = acquainted()
    first = replace(outcome(propose_seconds=0.11), began=True, opened=True)
    for _ in range(400):
        see(beliefs, first, 1)
        see(beliefs, outcome(), max(1, length // 3 - 1))
    tokens = 3 * max(2, length // 3)
    seconds = tokens / 3 * 0.03 + 0.1
    assert beliefs.gain(3.0) == pytest.approx(tokens * 0.02 / seconds, rel=0.1)


@pytest.mark.parametrize("began", [False, True])
def test_a_trial_is_paid_for_before_the_next_of_its_kind(began: bool) -> None:
    """Reading prompts for it included."""
    dear, cheap = acquainted(), acquainted()
    for beliefs, propose in ((dear, 1.0), (cheap, 0.02)):
        see(beliefs, PLAIN, 300)
        opening = replace(outcome(propose_seconds=propose), opened=True, began=began)
        see(beliefs, opening, 1, tried=True)
    waits = []
    for beliefs in (dear, cheap):
        rounds = 0
        while not beliefs.due(1) and rounds < 100_000:
            see(beliefs, PLAIN, 1)
            rounds += 1
        waits.append(rounds)
    assert waits[0] > 3 * waits[1]


def test_crowds_of_different_size_are_learned_of_apart() -> None:
    goodput, known = Goodput(), {1: 0.02, 8: 0.05, 64: 0.2}
    for running, seconds in known.items():
        goodput.running = running
        for _ in range(600 * running):
            goodput.saw(replace(PLAIN, verify_seconds=seconds))
    for running, seconds in known.items():
        goodput.running = running
        for _ in range(60 * running):
            goodput.saw(replace(PLAIN, began=True))
        assert goodput.beliefs.costs.plain.value == pytest.approx(seconds, rel=0.05)


def test_a_visitor_makes_no_other_crowd() -> None:
    goodput = Goodput()
    goodput.running = 7
    for _ in range(700):
        goodput.saw(PLAIN)
    known = goodput.beliefs
    goodput.running = 8
    for _ in range(8):
        goodput.saw(PLAIN)
    assert goodput.beliefs is known


def test_a_new_crowd_believes_what_the_nearest_did_until_it_knows_better() -> None:
    goodput = Goodput()
    goodput.running = 2
    for _ in range(200):
        goodput.saw(outcome() if goodput.trial is not False else PLAIN)
    known = goodput.beliefs
    goodput.running = 64
    for _ in range(64 * 60):
        goodput.saw(replace(PLAIN, began=True))
    assert goodput.beliefs is not known
    assert goodput.beliefs.costs.known


def test_a_trial_of_a_drafter_that_does_not_answer_ends_and_is_paid_for() -> None:
    goodput = Goodput()
    goodput.running = 1
    generation = Adaptive(MOST, goodput)
    rounds = 0
    while goodput.trial is not True:
        generation.next()
        generation.saw(PLAIN)
        rounds += 1
        assert rounds < 50
    before = goodput.beliefs._saved
    for _ in range(SETTLING + TRIAL):
        assert generation.next().levels
        assert goodput.trial is True
        generation.saw(replace(PLAIN, propose_seconds=5.0))
    assert goodput.beliefs._saved < before - 5.0 * (SETTLING + TRIAL - 1)


def lives(rounds: int, missed: Callable[[int], bool]) -> tuple[list[bool], float]:
    """Rounds of a generation whose drafts are good but do not come if `missed`: which asked, and
    the seconds that were lost.
    """
    goodput, asks = Goodput(), list[bool]()
    goodput.running = 1
    policy = Policy(Adaptive(MOST, goodput), wants_draft=True)
    lost = 0.0
    for number in range(rounds):
        asks.append(policy.next(99).levels > 0)
        late = 5.0 * (asks[-1] and missed(number))
        lost += late
        if late:
            policy.failed()
        elif asks[-1]:
            policy.drafted()
        told = outcome() if asks[-1] and not late else replace(PLAIN, propose_seconds=late)
        policy.amount.saw(told)
    return asks, lost


@pytest.mark.parametrize("often", [1.0, 0.3])
def test_time_lost_to_drafts_that_do_not_come_is_part_of_what_drafts_cost(often: float) -> None:
    """Those that come are good, but how long it takes to wait for the others!"""
    chance = random.Random(2)
    asks, lost = lives(20_000, lambda _: chance.random() < often)
    assert sum(asks[1000:]) < 200
    assert lost < 0.2 * 20_000 * PLAIN.verify_seconds


@pytest.mark.parametrize("when", [0, 1, 20, 1000])
def test_one_draft_that_does_not_come_does_not_end_drafting(when: int) -> None:
    due = [when]
    asks, lost = lives(2000, lambda number: bool(due) and number >= due[0] and not due.clear())
    assert lost == 5.0
    assert sum(asks[when + 150 : when + 450]) > 250


def test_a_drafter_that_knows_nothing_costs_hardly_anything_after_the_first_tokens() -> None:
    """Also the first request of a worker: from its 33rd token on it is about as fast as plain."""
    goodput, seconds = Goodput(), []
    goodput.running = 1
    generation = Adaptive(MOST, goodput)
    ignorant = outcome(levels=1, nodes=1, expected=0.01, accepted=0, propose_seconds=0.008)
    for _ in range(96):
        told = ignorant if generation.next().levels else PLAIN
        generation.saw(told)
        seconds.append(told.seconds)
    assert 0.02 * 64 / sum(seconds[32:]) > 0.95


def test_lessons_wait_for_a_drafter_that_does_not_answer_yet() -> None:
    beliefs = Beliefs()
    see(beliefs, PLAIN, 8)
    beliefs.missed(replace(PLAIN, propose_seconds=5.0), 1, tried=False)
    assert beliefs.costs.known and not beliefs.due(1)
    see(beliefs, replace(outcome(), propose_seconds=0.001), 99)
    assert beliefs.due(1) == (True, LESSONS[0])


def test_the_first_rounds_of_a_trial_tell_nothing() -> None:
    """Sessions that did something else before do not share steps yet."""
    goodput = Goodput()
    goodput.running = 4
    goodput.saw(outcome())
    assert goodput.trial is False
    for _ in range(SETTLING * 4):
        goodput.saw(replace(PLAIN, verify_seconds=9.0))
    for _ in range(TRIAL * 4):
        assert goodput.trial is False
        goodput.saw(PLAIN)
    assert goodput.trial is True
    assert goodput.beliefs.costs.plain.value == pytest.approx(0.02)
