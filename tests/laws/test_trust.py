"""What trials teach about a source of proposals, and which sessions learn it."""

from __future__ import annotations

import pytest

from tandem.engine.schedule.trust import BORROWED, Trust


def test_trials_in_which_nothing_is_claimed_fade_in_their_session_alone() -> None:
    shared = Trust.of_all()
    wrong = shared.begun()
    for _ in range(1000):
        wrong.observe(1.0, 0)
    others = [shared.begun() for _ in range(64)]
    known, at_first = shared.log, others[0].log
    for other in others:
        for _ in range(100):
            other.observe(0.0, 0)
    assert shared.log == known
    assert others[0].log > at_first, "it is believed again"


@pytest.mark.parametrize("claimed", [1.0, 1e-5], ids=["as much as it knows", "next to nothing"])
def test_a_new_session_takes_over_a_few_tokens_whatever_was_claimed(claimed: float) -> None:
    shared = Trust.of_all()
    for _ in range(1000):
        shared.observe(claimed, 1)
    begun = shared.begun()
    assert max(begun.claimed, begun.right) == pytest.approx(BORROWED)


def test_the_margin_is_what_chances_exceed_the_price_by() -> None:
    trust = Trust.of_all()
    assert trust.margin == trust.frequency == pytest.approx(0.5)
    for step in range(4000):
        trust.observe(0.8, int(step % 5 < 3), price=0.2)
    assert trust.frequency == pytest.approx(0.6, abs=0.02)
    assert trust.margin == pytest.approx(0.4, abs=0.02)
    for _ in range(4000):
        trust.observe(0.8, 1, price=0.99)
    assert trust.margin < 0.03, "at this price even one that is always right hardly pays"
