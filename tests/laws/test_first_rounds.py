"""The controller of a worker that has just started loses little until it knows what pays."""

from __future__ import annotations

import random
import statistics

import pytest

from orchestrator.goodput import Adaptive
from orchestrator.policy import Constant
from protos.types import DraftShape
from tests.laws.test_goodput import GPU, LARGE, MOST, SMALL, Costs, Guesses, rate


@pytest.mark.parametrize("costs", [SMALL, LARGE, GPU], ids=["small", "large", "gpu"])
@pytest.mark.parametrize("round_trip", [0, 0.02])
def test_32_tokens_are_enough_to_tell_that_a_drafter_is_hopeless(
    costs: Costs, round_trip: float
) -> None:
    """Of a worker that has just started; the first third of the tokens does not count."""
    costs = costs.distant(round_trip)
    plain = rate(Guesses((1, 60)), costs, 1, lambda _: Constant(DraftShape(0)), 96)
    assert rate(Guesses((1, 60)), costs, 1, lambda g: Adaptive(MOST, g), 96) >= 0.95 * plain


@pytest.mark.parametrize("sessions", [1, 8])
def test_to_learn_that_drafts_do_not_pay_costs_little_even_at_first(sessions: int) -> None:
    """Of a good drafter that is too far away: most workers are as fast as without it at once."""
    costs, ways = (
        SMALL.distant(0.02),
        (lambda g: Adaptive(MOST, g), lambda _: Constant(DraftShape(0))),
    )

    def ratio(seed: int) -> float:
        mine, plain = (
            rate(Guesses((6, 1.5), rng=random.Random(seed)), costs, sessions, way, 128, skipped=0)
            for way in ways
        )
        return mine / plain

    assert statistics.median(ratio(seed) for seed in range(7)) >= 0.95
