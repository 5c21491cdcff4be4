"""Which proposed nodes get a row: the likeliest over all sessions, as long as they pay."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import StepLimits, compose
from tandem.engine.schedule.cost import CostModel
from tandem.protos.types import MAX_NODES
from tests.laws.segments import TABLE, Known, longs

STEP, ROW = 0.02, 0.0004
chances_ = st.lists(st.floats(0.001, 1), max_size=12).map(lambda c: sorted(c, reverse=True))


def root(context: int = 50) -> Segment:
    """Return a segment with the newest token of a session."""
    return Segment(TABLE, context, (1,), (-1,), 1)


def rows(
    chances: list[list[float]],
    cost: CostModel,
    limits: StepLimits = StepLimits(),  # noqa: B008
) -> list[int]:
    """Return how many rows each session gets."""
    batch = compose([root()] * len(chances), lambda i: iter(chances[i]), cost, limits, 0.0)
    assert [allocation.index for allocation in batch.allocations] == list(range(len(chances)))
    return [allocation.rows for allocation in batch.allocations]


def rate(chances: list[list[float]], counts: tuple[int, ...]) -> float:
    """Return the tokens per second of a step with this many rows for each session."""
    expected = sum(1 + sum(own[:n]) for own, n in zip(chances, counts, strict=True))
    return expected / (STEP + ROW * (len(chances) + sum(counts)))


@given(st.lists(chances_, min_size=1, max_size=3))
def test_no_other_choice_yields_more_tokens_per_second(chances: list[list[float]]) -> None:
    found = rows(chances, Known(STEP, ROW, 0.0, 0.0))
    best = max(
        rate(chances, counts) for counts in itertools.product(*(range(len(c) + 1) for c in chances))
    )
    assert rate(chances, tuple(found)) == pytest.approx(best)


def test_in_a_crowd_a_row_must_be_likelier() -> None:
    cost = Known(STEP, ROW, 0.0, 0.0)
    alone, crowd = rows([[0.1] * 9], cost), rows([[0.1] * 9] * 30, cost)
    assert alone == [9] and crowd == [0] * 30


def test_rows_keep_the_limits() -> None:
    free = Known(STEP, 0.0, 0.0, 0.0)
    assert sum(rows([[1.0] * 40] * 8, free, StepLimits(tokens=100))) == 92
    assert rows([[1.0] * 100], free) == [MAX_NODES]
    assert rows([[1.0] * 9] * 9, free, StepLimits(sessions=9))[-1] == 9


@given(longs)
def test_a_long_prompt_gets_no_rows(prompt: Segment) -> None:
    chances = {0: [0.9] * 5, 1: [0.9] * 5}
    cost = Known(STEP, ROW, 0.0, 0.0)
    batch = compose([prompt, root()], lambda i: iter(chances[i]), cost, StepLimits(), 0.0)
    assert all(allocation.rows == 0 for allocation in batch.allocations if allocation.index == 0)
    assert [allocation.rows for allocation in batch.allocations if allocation.index == 1] == [5]


def test_the_price_is_what_the_next_row_would_have_had_to_have() -> None:
    cost = Known(STEP, ROW, 0.0, 0.0)
    batch = compose([root()] * 4, lambda _: iter(()), cost, StepLimits(), 0.0)
    assert batch.price == pytest.approx(ROW * 4 / (STEP + 4 * ROW))
