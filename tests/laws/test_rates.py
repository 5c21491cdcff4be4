"""How long recent steps take, for the pricing of drafts."""

from __future__ import annotations

import pytest

from tandem.engine.schedule.cost import AverageStepTimes


def test_rates_follow_what_steps_take_and_forget_a_slow_start() -> None:
    rates = AverageStepTimes()
    assert (rates.step, rates.row, rates.token) == (0.0, 0.0, 0.0)
    rates.observe(2.0, 1, 1.0)  # a slow step, as at the first use of a kernel
    for _ in range(60):
        rates.observe(0.008, 4, 2.0)
    assert (rates.step, rates.row, rates.token) == pytest.approx((0.008, 0.002, 0.004))
    rates.observe(10.0, 4, 2.0)
    assert rates.step < 0.009, "one that hiccups hardly counts"


def test_what_slowed_steps_down_is_forgotten_when_one_shows_that_it_is_over() -> None:
    rates = AverageStepTimes()
    for _ in range(60):
        rates.observe(0.2, 4, 2.0)
    rates.observe(0.03, 4, 2.0)
    assert rates.step > 0.1, "a light step among heavy ones shows nothing"
    rates.observe(0.004, 4, 2.0)
    assert (rates.step, rates.row, rates.token) == pytest.approx((0.004, 0.001, 0.002))


def test_rates_follow_what_is_predicted_where_that_is_faster() -> None:
    """A drafter that was slow once must be used again, although it only reads while drafts do not
    pay.
    """
    rates = AverageStepTimes()
    for _ in range(60):
        rates.observe(0.2, 4, 2.0)
    rates.predicted(0.5)
    assert rates.step == pytest.approx(0.2), "only a step that was taken shows that it is slower"
    for _ in range(12):
        rates.predicted(0.004)
    assert rates.step < 0.01
    assert (rates.row, rates.token) == pytest.approx((rates.step / 4, rates.step / 2))
