"""What is worth a drafter's time: proposals that should save the verifier more time than they
take.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tandem.drafter_service.tree.worth import (
    HALF,
    TRIAL_SECONDS,
    Conditions,
    DrafterHistory,
    FeedThreshold,
    Worth,
)
from tandem.engine.schedule.batch import StepCosts
from tandem.engine.schedule.core_waits import CoreWaits
from tandem.engine.schedule.cost import AverageStepTimes
from tandem.engine.schedule.trust import SLOW, Trust

TOKEN = 0.02
COST = 0.25
NEAR = Conditions(price=0.05, token_seconds=TOKEN, delay=0.001, pace=TOKEN)
FAR = replace(NEAR, delay=0.5)
RATES = AverageStepTimes(step=0.002, row=0.001)
COSTS = StepCosts(averages=RATES)


def taught(chance: float, often: float, price: float = NEAR.price) -> Trust:
    """Return the trust in a drafter that claims one chance and is right with another, at a
    price.
    """
    trials = 1000.0
    gained = max(0.0, often - price) * trials
    return Trust(chance * trials, often * trials, trials, gained, SLOW)


def worth(
    conditions: Conditions = NEAR, rates: AverageStepTimes = RATES, trust: Trust | None = None
) -> Worth:
    """Return the worth of a new session's nodes, by default from a good drafter."""
    history = DrafterHistory(trust or taught(0.8, 0.8))
    return Worth(conditions, StepCosts(averages=rates), history, COST)


def test_all_is_worth_it_until_something_is_known() -> None:
    for unknown in (Conditions(), replace(FAR, pace=0.0), replace(FAR, token_seconds=0.0)):
        assert worth(unknown).threshold() == FeedThreshold()
    assert worth(FAR, AverageStepTimes()).threshold().pays(-100.0, 50)


def test_a_drafter_whose_time_costs_nothing_always_proposes() -> None:
    known = DrafterHistory(taught(0.9, 0.01))
    for _ in range(2):
        free = Worth(FAR, COSTS, known, least_cost=0.0)
        assert free.should_read and free.threshold() == FeedThreshold()


def test_a_drafter_that_waits_for_cores_costs_what_others_wait_for_it() -> None:
    def least(waiting: float) -> float:
        costs = StepCosts(averages=RATES, core_waits=CoreWaits(running=1.0, waiting=waiting))
        return Worth(NEAR, costs, DrafterHistory(taught(0.8, 0.8)), COST).threshold().least

    assert least(0.0) == least(COST) < least(0.5) < least(1.0) == least(9.0)
    assert least(1.0) - least(0.0) == pytest.approx(math.log(1.0 / COST))


def test_a_drafter_that_is_near_fast_and_good_proposes() -> None:
    assert worth().should_read
    assert worth().threshold().pays(math.log(0.3), 3)
    assert not worth().threshold().pays(math.log(0.001), 3)


@pytest.mark.parametrize(
    "held_back",
    [
        worth(FAR),
        worth(rates=AverageStepTimes(step=1.01 * TOKEN, row=0.001)),
        worth(rates=AverageStepTimes(step=0.002, row=0.2)),
        worth(trust=taught(0.9, 0.01)),
        worth(replace(NEAR, token_seconds=0.0001)),
        worth(replace(NEAR, price=0.9), trust=taught(0.8, 0.8, 0.9)),
    ],
    ids=["far", "slower than the text", "dear", "bad", "cheap tokens", "dear rows"],
)
def test_one_that_cannot_help_begins_no_text(held_back: Worth) -> None:
    assert not held_back.should_read


def test_the_edge_of_what_pays_is_where_it_costs_what_it_saves() -> None:
    """The level comes in time, and the drafter does not overrate itself."""
    trust = taught(0.75, 0.75)
    chance = COST * RATES.row / (trust.margin * TOKEN)
    assert trust.margin == pytest.approx(0.7, abs=0.01)
    threshold = worth(trust=trust).threshold()
    depth = math.ceil(threshold.lead)
    assert threshold.pays(math.log(chance * 1.01), depth)
    assert not threshold.pays(math.log(chance * 0.99), depth)


def test_a_level_is_in_time_when_the_text_has_not_got_there() -> None:
    """Level d is sent a round trip, half a step and d steps after the commit."""
    far, step = replace(NEAR, delay=0.1), 0.008
    lead = worth(far, AverageStepTimes(step, 0.001)).threshold().lead
    gained = HALF + (far.delay + HALF * step + lead * step) / TOKEN
    assert lead == pytest.approx(gained) and lead > 5


def test_a_level_that_comes_too_late_is_worth_what_may_follow_it() -> None:
    threshold = FeedThreshold(least=math.log(0.1), fade=math.log(0.5), lead=3.0)
    assert threshold.pays(math.log(0.81), 0) and not threshold.pays(math.log(0.79), 0)
    assert threshold.pays(math.log(0.11), 3)


def test_an_overrated_chance_is_corrected_level_by_level() -> None:
    halved = worth(trust=taught(0.85, 0.425)).threshold()
    assert halved.trust == pytest.approx(math.log(0.5), abs=0.01)
    assert worth(trust=taught(0.45, 0.9)).threshold().trust == 0.0


def test_what_a_proposal_gains_is_learned_at_the_price_of_its_time() -> None:
    """The same drafter pays where rows are cheap, but not where they are dear."""
    least = []
    for price in (0.05, 0.79):
        known = DrafterHistory(Trust.of_all())
        text = Worth(replace(NEAR, price=price), COSTS, known, COST)
        for step in range(200):
            text.observe_proposal(0.8, step % 5 < 4)
        least.append(text.threshold().least)
    cheap, dear = least
    assert dear > cheap + math.log(4)


def test_what_one_text_teaches_is_known_to_all() -> None:
    known = DrafterHistory(taught(0.9, 0.01))
    begun, waiting = (Worth(NEAR, COSTS, known, COST) for _ in range(2))
    begun.text_grew(1, 100.0)
    assert begun.should_read and not waiting.should_read
    for _ in range(200):
        begun.observe_proposal(0.9, True)
    assert waiting.should_read, "also one that has waited"
    for _ in range(2000):
        begun.observe_proposal(0.9, False)
    assert waiting.should_read, "what was begun is read"
    assert not waiting.threshold().pays(0.0, 0)


def test_a_text_is_begun_when_none_was_read_for_a_while() -> None:
    """A drafter that was slow or of no use at first may be good by now, and a trial costs
    little.
    """
    known, pause, part = DrafterHistory(taught(0.9, 0.01)), TRIAL_SECONDS, 0.3 * TRIAL_SECONDS
    first, second = (Worth(NEAR, COSTS, known, COST) for _ in range(2))
    first.text_grew(1, 100.0)
    assert first.should_read
    for turn in range(1, 20, 2):
        second.text_grew(1, 100.0 + turn * part)
        first.text_grew(1, 100.0 + (turn + 1) * part)
    assert not second.should_read, "the first is read meanwhile"
    second.text_grew(1, 100.0 + 20 * part + 0.99 * pause)
    assert not second.should_read
    second.text_grew(1, 100.0 + 20 * part + 1.01 * pause)
    assert second.should_read


def test_a_texts_pace_is_seconds_to_a_token_and_knows_no_pauses() -> None:
    conditions, text = Conditions(), worth(FAR)
    now = 0.0
    for step in range(400):
        tokens = 1 if step % 2 else 10
        now += TOKEN
        conditions.observe(tokens, TOKEN)
    assert conditions.pace == pytest.approx(2 * TOKEN / 11, rel=0.3)
    usual = conditions.pace
    conditions.observe(1, 600.0)
    assert conditions.pace < 1.5 * usual
    for step in range(400):
        text.text_grew(2, 1.0 + 0.1 * step)
    assert text.threshold().lead == pytest.approx(
        worth(replace(FAR, pace=0.05)).threshold().lead, rel=0.01
    )
