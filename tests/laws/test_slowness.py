"""Which replicas are slow, which are avoided for how long, and which ones sessions leave."""

from __future__ import annotations

from math import nan, nextafter

import pytest

from tandem.orchestrator.fleet.slowness import (
    AVOID_SECONDS,
    CONFIRM_SECONDS,
    SLOW_FACTOR,
    SLOW_SECONDS,
    Slowness,
)
from tandem.protos.streams import PassTimes

LEAST, MOST = AVOID_SECONDS
FAST, SLOW, IDLE, NEW = (
    PassTimes(0.02, 0.01),
    PassTimes(2.0, 1.0),
    PassTimes(0.0, 0.01),
    PassTimes(),
)
LARGE = PassTimes(2.0, 1.9)
LATE = nextafter(SLOW_SECONDS, 9)


@pytest.mark.parametrize(
    ("passes", "slow"),
    [
        ({"a": SLOW}, ""),
        ({"a": SLOW, "b": FAST}, "a"),
        ({"a": SLOW, "b": IDLE}, "a"),
        ({"a": SLOW, "b": NEW}, ""),
        ({"a": PassTimes(2.0, 0.0), "b": FAST}, ""),
        ({"a": SLOW, "b": FAST, "c": SLOW}, "ac"),
        ({"a": SLOW, "b": PassTimes(0.1, 1.0 / SLOW_FACTOR)}, ""),
        ({"a": SLOW, "b": PassTimes(0.1, nextafter(1.0 / SLOW_FACTOR, 0))}, "a"),
        ({"a": PassTimes(SLOW_SECONDS, 1.0), "b": FAST}, ""),
        ({"a": PassTimes(LATE, 1.0), "b": FAST}, "a"),
        ({"a": LARGE, "b": PassTimes(0.1, 1.9)}, ""),
        ({"a": PassTimes(5.0, 0.02), "b": FAST}, ""),
        ({"a": PassTimes(nan, nan), "b": FAST}, ""),
        ({"a": SLOW, "b": PassTimes(nan, nan)}, ""),
        ({"a": IDLE, "b": IDLE}, ""),
    ],
    ids=str,
)
def test_what_is_slow(passes: dict[str, PassTimes], slow: str) -> None:
    slowness = Slowness()
    slowness.observe(passes, dict.fromkeys(passes, "one"), 0.0)
    assert slowness.avoided == set(slow)


def test_a_replica_is_compared_with_those_that_compute_the_same() -> None:
    slowness = Slowness()
    passes = {"a": SLOW, "b": SLOW, "c": FAST}
    slowness.observe(passes, {"a": "cpu", "b": "cpu", "c": "gpu"}, 0.0)
    assert not slowness.avoided
    slowness.observe(passes, {"a": "cpu", "b": "gpu", "c": "gpu"}, 0.0)
    assert slowness.avoided == {"b"}


class Two:
    """What is known of `a` beside a fast `b`."""

    def __init__(self) -> None:
        self.slowness = Slowness()

    def observe(self, of_a: PassTimes, now: float) -> tuple[bool, bool]:
        """Whether it is avoided, and left."""
        self.slowness.observe({"a": of_a, "b": FAST}, {"a": "one", "b": "one"}, now)
        assert not {"b"} & (self.slowness.avoided | self.slowness.left)
        return "a" in self.slowness.avoided, "a" in self.slowness.left

    def avoided_for(self, now: float) -> float:
        """How long, if it turns slow now and has no work from then on."""
        assert self.observe(SLOW, now) == (True, False)
        step, later = LEAST / 10, 0.0
        while self.observe(IDLE, now + later)[0]:
            later += step
        return later


def test_one_slow_pass_makes_no_session_leave() -> None:
    two = Two()
    assert two.observe(SLOW, 0.0) == (True, False)
    assert two.observe(SLOW, 0.9 * CONFIRM_SECONDS) == (True, False)
    assert two.observe(FAST, CONFIRM_SECONDS) == (True, False)
    assert two.observe(SLOW, 1.5 * CONFIRM_SECONDS) == (True, False)
    assert two.observe(SLOW, 2.5 * CONFIRM_SECONDS) == (True, True)
    assert two.observe(IDLE, 3.0 * CONFIRM_SECONDS) == (True, False)


def test_one_that_is_slow_again_is_avoided_for_twice_as_long() -> None:
    two, now = Two(), 0.0
    for seconds in (10, 20, 40, 80, 160, 320, 320):
        assert two.avoided_for(now) == pytest.approx(seconds)
        now += 1.5 * seconds
    assert two.avoided_for(now + 2 * MOST) == LEAST, "it was well for long"


def test_one_that_is_slow_all_along_is_avoided_all_along() -> None:
    two = Two()
    for now in range(100):
        assert two.observe(SLOW, now) == (True, now >= CONFIRM_SECONDS)
    assert two.observe(IDLE, 99 + LEAST)[0] is False


def test_one_that_was_lost_is_new() -> None:
    two = Two()
    two.observe(SLOW, 0.0)
    two.slowness.observe({"b": FAST}, {"b": "one"}, 1.0)
    assert two.observe(NEW, 2.0) == (False, False)
    assert two.avoided_for(3.0) == LEAST
