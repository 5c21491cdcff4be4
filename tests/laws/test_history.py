"""The figures of the last minutes are exact differences of counters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.orchestrator.frontend.history import Figures, History, Totals

SECOND = Totals(
    tokens=30,
    steps=10,
    steps_with_drafts=8,
    drafted=40,
    accepted=20,
    tokens_with_drafts=25,
    seconds_with_drafts=0.5,
    tokens_without_drafts=5,
    seconds_without_drafts=0.25,
    finished=2,
    failed=1,
)


def times(count: float) -> Totals:
    """Return what `count` such seconds add to the counters."""
    counted = {name: getattr(SECOND, name) * count for name in Totals.__slots__}
    return Totals(**counted)


def test_figures_are_differences_over_the_time_in_between() -> None:
    history = History()
    history.add(100.0, times(3))
    history.add(110.0, replace(times(13), running=4, waiting=7))
    assert history.over(60) == Figures(10.0, 30.0, 0.5, 3.0, 50.0, 20.0, 0.8, 2.0, 20, 10, 4, 7)


def test_what_was_not_counted_is_absent_and_not_zero() -> None:
    history = History()
    assert history.over(60) == Figures(0.0, 0.0, *[None] * 6, 0, 0, 0, 0)
    history.add(0.0, times(1))
    history.add(10.0, replace(times(1), tokens=times(1).tokens, running=1))
    assert history.over(60) == Figures(10.0, 0.0, *[None] * 6, 0, 0, 1, 0)


def test_the_gain_is_of_all_steps_and_absent_where_few_are_of_either_kind() -> None:
    """A good draft in every tenth step does not double the speed."""
    rare = Totals(
        tokens=120,
        steps=100,
        steps_with_drafts=20,
        tokens_with_drafts=40,
        seconds_with_drafts=20,
        tokens_without_drafts=80,
        seconds_without_drafts=80,
    )
    assert Figures.between(Totals(), rare, 100.0).goodput_gain == pytest.approx(1.2)
    few = replace(rare, steps_with_drafts=19)
    assert Figures.between(Totals(), few, 100.0).goodput_gain is None
    none = replace(rare, steps=20, tokens_without_drafts=0, seconds_without_drafts=0)
    assert Figures.between(Totals(), none, 100.0).goodput_gain is None


@given(st.lists(st.floats(0.01, 30.0), min_size=1, max_size=60), st.sampled_from([5, 60]))
def test_no_count_is_lost_and_none_twice(pauses: list[float], seconds: int) -> None:
    """However often the figures are read, all buckets together count everything since the first."""
    history, now = History(buckets=1000), 0.0
    history.add(now, times(0))
    for count, pause in enumerate(pauses, 1):
        now += pause
        history.add(now, times(count))
    series = history.series()
    assert sum(each.finished for each in series) == SECOND.finished * len(pauses)
    assert sum(each.seconds for each in series) == pytest.approx(now)
    recent = history.over(seconds)
    assert recent.seconds >= min(seconds, now) - 1e-9
    assert recent.seconds <= max(p for p in pauses) + seconds + 5 + 1e-9


def test_the_past_is_forgotten_after_so_many_buckets() -> None:
    history = History(seconds=1.0, buckets=10)
    for second in range(100):
        history.add(float(second), times(second))
        history.add(second + 0.5, times(second + 0.5))
    assert len(history.series()) == 10
    assert history.over(1000).seconds == pytest.approx(10.0)
    assert all(each.tokens_per_second == pytest.approx(30.0) for each in history.series())
