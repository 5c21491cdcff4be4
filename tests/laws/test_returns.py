"""Sessions that will soon be back are waited for; the others are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.returns import MANY, Returns

PATIENCE = 0.01


def after(delays: dict[bytes, float]) -> Returns:
    """Sessions that were answered at 0 and came back so much later; they are answered at 100."""
    returns = Returns()
    returns.answered(delays, 0.0, PATIENCE)
    for name, delay in delays.items():
        returns.back(name, delay)
    returns.answered(delays, 100.0, PATIENCE)
    return returns


@given(st.floats(0, PATIENCE), st.floats(0, 0.009))
def test_whoever_was_punctual_is_waited_for_as_long_as_agreed(delay: float, passed: float) -> None:
    returns, now = after({b"a": delay, b"b": delay}), 100.0 + passed
    for here in (set[bytes](), {b"a"}, {b"b", b"else"}):
        assert returns.wait(here, now) == pytest.approx(PATIENCE - passed)
    assert returns.wait({b"a", b"b"}, now) == 0
    returns.back(b"a", 100.0)
    assert returns.wait({b"b"}, now) == 0, "it is at work"


def test_nobody_waits_for_those_who_are_elsewhere_for_longer() -> None:
    """However many others come back at once."""
    names = [bytes([number]) for number in range(20)]
    returns = after(dict.fromkeys(names, 0.0) | {b"drafts": 0.08})
    assert returns.wait(set(names), 100.0) == 0
    assert returns.wait(set(names[1:]), 100.0) > 0


def test_whoever_stays_away_is_waited_for_once_and_forgiven_when_back_in_time() -> None:
    returns = Returns()
    returns.answered([b"away", b"here"], 0.0, PATIENCE)
    assert returns.wait({b"here"}, 0.5 * PATIENCE) > 0
    assert returns.wait({b"here"}, 2 * PATIENCE) == 0
    for number in range(1, 4):
        returns.answered([b"away"], float(number), PATIENCE)
        assert (returns.wait(set(), float(number)) > 0) is (number == 3)
        returns.back(b"away", number + 0.5 * PATIENCE * (number > 1))
        if number == 1:
            returns.answered([b"away"], 1.5, PATIENCE)
            returns.back(b"away", 1.5 + 2 * PATIENCE)


def test_little_is_remembered_of_those_who_never_come_back() -> None:
    returns = Returns()
    for number in range(3 * MANY):
        returns.answered([number.to_bytes(4, "big")], float(number), PATIENCE)
        assert returns.wait({b"else"}, number + 0.5) == 0
    assert len(returns._late) == MANY
    assert not returns._left
