"""Sessions that will soon be back are waited for; the others are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.returns import LIKELY, MEMORY, Returns

PATIENCE = 0.01
MANY = 10 * int(MEMORY)


def after(delays: list[float]) -> Returns:
    """Sessions that were answered and came back so much later."""
    returns = Returns()
    for number, delay in enumerate(delays):
        name = number.to_bytes(4, "big")
        returns.answered([name], float(number), PATIENCE)
        returns.back(name, number + delay)
    return returns


@given(st.lists(st.floats(0, PATIENCE), max_size=9), st.floats(0, 0.009))
def test_whoever_was_punctual_is_waited_for_as_long_as_agreed(
    delays: list[float], passed: float
) -> None:
    returns = after(delays)
    returns.answered([b"a", b"b"], 100.0, PATIENCE)
    for here in (set[bytes](), {b"a"}, {b"b", b"else"}):
        assert returns.wait(here, 100.0 + passed) == pytest.approx(PATIENCE - passed)
    assert returns.wait({b"a", b"b"}, 100.0 + passed) == 0
    returns.back(b"a", 100.0)
    assert returns.wait({b"b"}, 100.0 + passed) == 0, "it is at work"


@pytest.mark.parametrize(("share", "waits"), [(LIKELY - 0.1, False), (LIKELY + 0.1, True)])
def test_it_is_worth_it_if_most_came_back_in_time(share: float, waits: bool) -> None:
    late = [number * (1 - share) % 1 < 1 - share for number in range(MANY)]
    returns = after([(2 if each else 0.5) * PATIENCE for each in late])
    returns.answered([b"a"], 1000.0, PATIENCE)
    assert (returns.wait(set(), 1000.0) > 0) is waits


def test_whoever_stays_away_is_waited_for_once() -> None:
    returns = Returns()
    returns.answered([b"gone", b"here"], 0.0, PATIENCE)
    assert returns.wait({b"here"}, 0.5 * PATIENCE) > 0
    assert returns.wait({b"here"}, 2 * PATIENCE) == 0
    returns.back(b"here", 0.5 * PATIENCE)
    returns.answered([b"here"], 1.0, PATIENCE)
    assert returns.wait({b"here"}, 1.0) == 0
    for number in range(MANY):
        returns.answered([number.to_bytes(4, "big")], 2.0 + number, PATIENCE)
        returns.wait(set(), 2.5 + number)
    returns.answered([b"a"], 1000.0, PATIENCE)
    assert returns.wait(set(), 1000.0) == 0, "nobody came back"
    for number in range(MANY):
        returns.answered([b"a"], 2000.0 + number, PATIENCE)
        returns.back(b"a", 2000.0 + number)
    returns.answered([b"a"], 3000.0, PATIENCE)
    assert returns.wait(set(), 3000.0) > 0, "they came back again"
