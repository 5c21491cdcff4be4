"""How sessions are placed: evenly over replicas; they move only when their replica goes, and leave
replicas that are outliers. The tests say which replicas count as slow, for how long they are
ejected, and which sessions leave.
"""

from __future__ import annotations

from collections import Counter
from math import nan, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.orchestrator.links.policy import (
    CONFIRM_SECONDS,
    EJECTION_SECONDS,
    SLACK,
    SLOW_FACTOR,
    SLOW_SECONDS,
    OutlierDetection,
    choose,
)
from tandem.protos.streams import PassTimes

KEYS = [number.to_bytes(16, "big") for number in range(20_000)]
NAMES = ["10.0.0.1:50051", "10.0.0.2:50051", "10.0.0.3:50051"]


def test_sessions_spread_evenly() -> None:
    count = Counter(choose(key, dict.fromkeys(NAMES, 0)) for key in KEYS)
    assert set(count) == set(NAMES)
    assert max(count.values()) < 1.05 * min(count.values())


@given(gone=st.sampled_from(NAMES))
def test_only_sessions_of_a_replica_that_goes_are_moved(gone: str) -> None:
    everybody = dict.fromkeys(NAMES, 0)
    left = {name: 0 for name in NAMES if name != gone}
    for key in KEYS[:500]:
        before = choose(key, everybody)
        assert choose(key, left) == before or before == gone


@given(order=st.permutations(NAMES), key=st.binary(min_size=16, max_size=16))
def test_all_workers_agree(order: list[str], key: bytes) -> None:
    assert choose(key, dict.fromkeys(order, 0)) == choose(key, dict.fromkeys(NAMES, 0))


@given(key=st.binary(min_size=16, max_size=16), many=st.integers(SLACK + 1, 1000))
def test_a_crowded_replica_is_avoided(key: bytes, many: int) -> None:
    first = choose(key, dict.fromkeys(NAMES, 0))
    assert choose(key, dict.fromkeys(NAMES, 0) | {first: many}) != first
    assert choose(key, dict.fromkeys(NAMES, 0) | {first: SLACK}) == first
    assert choose(key, {first: many}) == first


def test_no_replica_is_overloaded_by_one_client() -> None:
    sessions = dict.fromkeys(NAMES, 0)
    for _ in range(100):
        sessions[choose(b"one client", sessions)] += 1
    assert max(sessions.values()) - min(sessions.values()) <= SLACK + 1


LEAST, MOST = EJECTION_SECONDS
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
    detection = OutlierDetection()
    detection.observe(passes, dict.fromkeys(passes, "one"), 0.0)
    assert detection.ejected == set(slow)


def test_a_replica_is_compared_with_those_that_compute_the_same() -> None:
    detection = OutlierDetection()
    passes = {"a": SLOW, "b": SLOW, "c": FAST}
    detection.observe(passes, {"a": "cpu", "b": "cpu", "c": "gpu"}, 0.0)
    assert not detection.ejected
    detection.observe(passes, {"a": "cpu", "b": "gpu", "c": "gpu"}, 0.0)
    assert detection.ejected == {"b"}


class Two:
    """What is known of replica `a` beside a fast replica `b`."""

    def __init__(self) -> None:
        self.detection = OutlierDetection()

    def observe(self, of_a: PassTimes, now: float) -> tuple[bool, bool]:
        """Return whether replica `a` is ejected, and whether its sessions leave it."""
        self.detection.observe({"a": of_a, "b": FAST}, {"a": "one", "b": "one"}, now)
        assert not {"b"} & (self.detection.ejected | self.detection.confirmed)
        return "a" in self.detection.ejected, "a" in self.detection.confirmed

    def ejected_for(self, now: float) -> float:
        """Return for how long the replica is ejected if it turns slow now and has no work from then
        on.
        """
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


def test_one_that_is_slow_again_is_ejected_for_twice_as_long() -> None:
    two, now = Two(), 0.0
    for seconds in (10, 20, 40, 80, 160, 320, 320):
        assert two.ejected_for(now) == pytest.approx(seconds)
        now += 1.5 * seconds
    assert two.ejected_for(now + 2 * MOST) == LEAST, "it was well for long"


def test_one_that_is_slow_all_along_is_ejected_all_along() -> None:
    two = Two()
    for now in range(100):
        assert two.observe(SLOW, now) == (True, now >= CONFIRM_SECONDS)
    assert two.observe(IDLE, 99 + LEAST)[0] is False


def test_one_that_was_lost_is_new() -> None:
    two = Two()
    two.observe(SLOW, 0.0)
    two.detection.observe({"b": FAST}, {"b": "one"}, 1.0)
    assert two.observe(NEW, 2.0) == (False, False)
    assert two.ejected_for(3.0) == LEAST
