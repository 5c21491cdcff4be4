"""Sessions spread over replicas evenly, and move only when theirs goes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tandem.orchestrator.fleet.routing import SLACK, choose

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
