"""How soon a refused request is asked to come back."""

from __future__ import annotations

import pytest

from tandem.orchestrator.frontend.turnover import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    UNKNOWN_SECONDS,
    Turnover,
)


def ending(every: float, times: int = 100) -> Turnover:
    """Requests have ended in such intervals."""
    turnover = Turnover()
    for number in range(times):
        turnover.ended(number * every)
    return turnover


def test_nothing_is_known_before_requests_have_ended() -> None:
    turnover = Turnover()
    assert turnover.retry_after() == UNKNOWN_SECONDS
    turnover.ended(7.0)
    assert turnover.retry_after() == UNKNOWN_SECONDS


def test_refused_requests_come_back_as_others_end() -> None:
    turnover = ending(every=0.5)
    assert [turnover.retry_after() for _ in range(4)] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    turnover.ended(50.0)
    assert turnover.retry_after() == pytest.approx(2.0, rel=0.1)


def test_the_delay_has_bounds_whatever_was_refused() -> None:
    """And a flood is forgotten as soon as those whose delay was shorter have had their time."""
    turnover = ending(every=0.001)
    assert turnover.retry_after() == SHORTEST_SECONDS
    turnover = ending(every=1.0)
    assert max(turnover.retry_after() for _ in range(10_000)) == LONGEST_SECONDS
    for second in range(100, 111):
        turnover.ended(float(second))
    assert turnover.retry_after() == pytest.approx(1.0)


def test_a_quiet_hour_is_no_slow_end() -> None:
    turnover = ending(every=0.1)
    turnover.ended(3600.0)
    assert turnover.retry_after() < 1.5
