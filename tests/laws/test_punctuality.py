"""When a step that is alone waits for guesses: while they are punctual and worth their time."""

from __future__ import annotations

import pytest

from verifier_service.punctuality import GRACE, MOST, REMEMBERED, Punctuality

STEP = 0.04


def learned(lag: float, gap: float = 0.003) -> Punctuality:
    """What is known after a fact that no guess foresaw and two guesses behind it."""
    times = Punctuality()
    times.said(10, 1.0, foreseen=False)
    times.came(10, 1.0 + lag)
    times.came(10, 1.0 + lag + gap)
    return times


def test_nobody_waits_for_a_drafter_that_was_never_heard() -> None:
    times = Punctuality()
    times.said(10, 1.0, foreseen=False)
    assert times.left(1.0, STEP, 0.0, 1.0) == 0.0


def test_the_first_guess_is_waited_for_a_little_longer_than_it_usually_takes() -> None:
    times = learned(0.005)
    times.said(11, 2.0, foreseen=False)
    assert times.left(2.0, STEP, 0.0, 1.0) == pytest.approx(GRACE * 0.005)
    assert times.left(2.0 + GRACE * 0.005, STEP, 0.0, 1.0) <= 1e-9


def test_a_drafter_as_far_away_as_half_a_step_is_not_waited_for() -> None:
    times = learned(MOST * STEP * 1.01)
    times.said(11, 2.0, foreseen=False)
    assert times.left(2.0, STEP, 0.0, 1.0) == 0.0


def test_another_level_is_waited_for_while_it_adds_more_than_its_time_costs() -> None:
    times = learned(0.005, gap=0.003)
    times.said(11, 2.0, foreseen=False)
    times.came(11, 2.005)
    assert times.left(2.005, STEP, 0.9, 0.6) > 0.0
    assert times.left(2.005, STEP, 3.0, 0.2) <= 0.0
    assert times.left(2.005, 0.003, 0.9, 0.6) <= 0.0, "a fast step is worth more than a level"


def test_a_drafter_that_did_not_come_in_time_is_not_waited_for_until_it_does() -> None:
    times = learned(0.005)
    times.said(11, 2.0, foreseen=False)
    times.came(11, 2.1)
    assert not times.kept
    for length in range(12, 40):
        times.said(length, float(length), foreseen=False)
        times.came(length, length + 0.005)
    assert times.kept
    times.said(40, 40.0, foreseen=False)
    assert times.left(40.0, STEP, 0.0, 1.0) > 0.0


def test_facts_that_a_guess_foresaw_tell_nothing_of_how_far_the_drafter_is() -> None:
    times = learned(0.005)
    times.said(11, 2.0, foreseen=True)
    times.came(11, 2.5)
    assert times.lag == pytest.approx(0.005)


def test_facts_without_guesses_are_forgotten() -> None:
    times = Punctuality()
    for length in range(10 * REMEMBERED):
        times.said(length, 1.0, foreseen=False)
    assert len(times._facts) <= REMEMBERED


def test_a_drafter_that_says_nothing_is_waited_for_once() -> None:
    times = learned(0.005)
    times.said(11, 2.0, foreseen=False)
    assert times.left(2.0, STEP, 0.0, 1.0) > 0.0
    times.said(12, 2.0 + STEP, foreseen=False)
    assert times.left(2.0 + STEP, STEP, 0.0, 1.0) == 0.0
