"""What is worth a drafter's time: what should save the verifier more of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from drafter_service.worth import COST, CURIOUS, FIRST, LEAST, Conditions, Outlook, Skill, Worth
from engine.cost import Rates

NEAR = Conditions(price=0.05, token_seconds=0.02, delay=0.001)
RATES = Rates(step=0.002, row=0.001)


def worth(conditions: Conditions = NEAR, rates: Rates = RATES, **skill: float) -> Worth:
    """That of a new session's nodes, whose text gains a token in 20 ms."""
    known = Skill(seconds=0.02, **skill)
    next(known.texts)  # it is not the one in so many
    return Worth(conditions, rates, known)


def test_all_is_worth_it_until_something_is_known() -> None:
    assert Worth(Conditions(), RATES, Skill(seconds=0.02)).outlook() == Outlook()
    assert Worth(NEAR, RATES, Skill()).outlook() == Outlook()
    assert Worth(NEAR, Rates(), Skill(seconds=0.02)).outlook().pays(-100.0, 50)


def test_a_drafter_that_is_near_fast_and_good_guesses() -> None:
    assert worth().begins
    assert worth().outlook().pays(math.log(0.3), 3)
    assert not worth().outlook().pays(math.log(0.001), 3)


@pytest.mark.parametrize(
    "held_back",
    [
        worth(replace(NEAR, delay=0.5)),
        worth(rates=Rates(step=0.5, row=0.5)),
        worth(right=0.1, edge=0.02),
        worth(replace(NEAR, token_seconds=0.0001)),
        worth(edge=0.0),
    ],
    ids=["far", "slow", "bad", "cheap tokens", "dear rows"],
)
def test_one_that_cannot_help_begins_no_text(held_back: Worth) -> None:
    assert not held_back.begins


def test_the_edge_of_what_pays_is_where_it_costs_what_it_saves() -> None:
    """At a level that is in time, behind a drafter that does not overrate itself."""
    chance = COST * RATES.row / (FIRST * NEAR.token_seconds)
    outlook = worth().outlook()
    depth = math.ceil(outlook.lead)
    assert outlook.pays(math.log(chance * 1.001), depth)
    assert not outlook.pays(math.log(chance * 0.999), depth)


def test_a_level_that_comes_too_late_is_worth_what_may_follow_it() -> None:
    outlook = Outlook(least=math.log(0.1), fade=math.log(0.5), lead=3.0)
    assert outlook.pays(math.log(0.81), 0) and not outlook.pays(math.log(0.79), 0)
    assert outlook.pays(math.log(0.11), 3)


def test_an_overrated_chance_is_corrected_level_by_level() -> None:
    told = worth(right=0.4, claimed=0.8).outlook()
    assert told.trust == pytest.approx(math.log(0.5))
    assert worth(right=0.8, claimed=0.4).outlook().trust == 0.0


def test_one_text_of_so_many_is_begun_in_any_case_and_teaches_all() -> None:
    shared, far = Skill(right=0.01, seconds=0.02), replace(NEAR, delay=0.5)
    texts = [Worth(far, RATES, shared) for _ in range(3 * CURIOUS)]
    begun = [text for text in texts if text.begins]
    assert len(begun) == 3
    for _ in range(500):
        begun[0].judge(0.9, True)
    assert shared.right > 0.9
    assert Worth(NEAR, RATES, shared).begins


def test_what_is_believed_is_how_often_the_likeliest_guess_is_right() -> None:
    text, skill = Skill(), Skill()
    for number in range(2000):
        text.saw(0.9, number % 10 < 3, 0.1, 0.01)
        skill.saw(0.05, False, 0.1, 0.01)
    assert text.right == pytest.approx(0.3, abs=0.05)
    assert text.edge == pytest.approx(0.2, abs=0.05)
    assert skill.edge < LEAST


def test_a_text_s_speed_is_learned_from_when_it_is_heard() -> None:
    one = worth()
    for step in range(200):
        one.heard(2, 1.0 + 0.1 * step)
    assert one.outlook().lead == pytest.approx(worth().outlook().lead * 0.4 + 0.3, abs=0.15)
