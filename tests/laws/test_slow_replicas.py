"""Streams leave a replica that is much slower than others, and it gets no new streams for a
while.
"""

from __future__ import annotations

import pytest

from tandem.orchestrator.links.policy import CONFIRM_SECONDS, EJECTION_SECONDS
from tandem.protos.errors import Busy, Internal, TandemError, TransportLost
from tests.laws.test_balanced import Reader, Three, opening
from tests.laws.wires import FAST, SLOW

LEAST = EJECTION_SECONDS[0]


@pytest.fixture
def three() -> Three:
    """Return three replicas of one model, each with its own streams, whose numbers are sessions."""
    three = Three()
    for link in three.links.values():
        link.passes = FAST
    for stream in range(1, 20):
        three.balanced.open(stream, opening(stream), Reader())
    return three


def slow_down(three: Three, slow: str, now: float = 0.0) -> dict[int, Reader]:
    """Make a replica slow until its streams leave; return the readers that they had before."""
    link = three.links[slow]
    link.passes = SLOW
    readers = {stream: placement.subscriber for stream, placement in link.streams.items()}
    three.balanced.leave_outliers(now)
    assert set(link.streams) == set(readers)
    three.balanced.leave_outliers(now + CONFIRM_SECONDS)
    return readers


def open_many(three: Three, first: int) -> None:
    for stream in range(first, first + 30):
        three.balanced.open(stream, opening(stream), Reader())


def test_streams_leave_a_slow_replica_which_forgets_their_sessions(three: Three) -> None:
    others = {name: set(three.links[name].streams) for name in "bc"}
    readers = slow_down(three, "a")
    assert readers
    assert not three.links["a"].streams
    assert sorted(three.links["a"].closed) == [
        (opening(stream).context.session_id, 1) for stream in sorted(readers)
    ]
    for stream, reader in readers.items():
        assert reader.events == [TransportLost]
        three.balanced.open(100 + stream, opening(stream), reader)
        assert three.place(100 + stream) in "bc"
    assert all(others[name] <= set(three.links[name].streams) for name in "bc")


def test_nothing_new_is_opened_at_a_slow_replica_until_it_is_tried_again(three: Three) -> None:
    slow_down(three, "a")
    three.links["a"].passes = FAST
    open_many(three, 100)
    assert not three.links["a"].streams
    three.balanced.leave_outliers(CONFIRM_SECONDS + LEAST)
    open_many(three, 200)
    assert three.links["a"].streams


def test_a_slow_replica_is_better_than_none(three: Three) -> None:
    for name in "bc":
        three.links[name].become(False)
    readers = slow_down(three, "a")
    open_many(three, 100)
    assert len(three.links["a"].streams) == len(readers) + 30
    three.links["b"].become(True)
    three.balanced.leave_outliers(1.0)
    assert three.links["a"].streams, "it may be a hiccup"
    three.balanced.leave_outliers(1.0 + CONFIRM_SECONDS)
    assert not three.links["a"].streams


def test_a_session_stays_at_a_slow_replica_where_the_others_compute_other_bits() -> None:
    three = Three()
    for name, link in three.links.items():
        link.model, link.passes = "one" if name in "ab" else "other", FAST
    three.balanced.retain("ac")  # b leaves the list, after which a counts as slow
    three.balanced.open(1, opening(1, group="one"), three.reader)
    slow_down(three, "a")
    three.balanced.open(2, opening(2, group="one"), three.reader)
    assert three.place(1) == three.place(2) == "a"
    assert not three.reader.events


def test_a_session_that_the_fast_ones_refused_stays(three: Three) -> None:
    (stream, *_) = three.links["a"].streams
    three.balanced.drop(stream)
    for name in "bc":
        three.links[name].become(False)
    slow_down(three, "a")
    three.links["b"].become(True)
    three.balanced.open(100, opening(stream), three.reader)
    session = three.links["a"].streams[100].session
    session.refused.add("b")
    three.balanced.leave_outliers(1.0)
    three.balanced.leave_outliers(2.0)
    assert set(three.links["a"].streams) == {100}


def test_leaving_is_no_refusal(three: Three) -> None:
    """A text stays on a slow replica rather than move to one that computes other bits."""
    for name, link in three.links.items():
        link.model = "one" if name in "ab" else "other"
    readers = slow_down(three, "a")
    three.links["b"].become(False)
    for stream, reader in readers.items():
        three.balanced.open(100 + stream, opening(stream, group="one"), reader)
        assert three.place(100 + stream) == "a"


def test_a_session_leaves_once_in_a_while(three: Three) -> None:
    (stream, *_) = slow_down(three, "a")
    three.balanced.open(100, opening(stream), three.reader)
    place = three.place(100)
    three.links[place].streams[100].failed(Busy("full"))
    three.balanced.drop(100)
    for name in "bc":
        three.links[name].become(False)
    three.balanced.open(101, opening(stream), three.reader)
    three.links[place].become(True)
    three.links["a"].streams[101].receive("commit")
    three.balanced.leave_outliers(2.0)
    three.balanced.leave_outliers(3.0)
    assert three.place(101) == "a"
    three.balanced.leave_outliers(CONFIRM_SECONDS + LEAST)
    assert 101 not in three.links["a"].streams


def test_a_bug_in_one_session_does_not_affect_the_others(three: Three) -> None:
    (first, *others) = sorted(three.links["a"].streams)
    broken = three.links["a"].streams[first].subscriber
    right = broken.failed

    def wrong(error: TandemError) -> None:
        right(error)
        if isinstance(error, TransportLost):
            raise ValueError

    broken.failed = wrong
    readers = slow_down(three, "a")
    assert readers[first].events == [TransportLost, Internal]
    assert all(readers[stream].events == [TransportLost] for stream in others)


def test_one_that_was_slow_is_better_than_one_that_is(three: Three) -> None:
    three.links["c"].become(False)
    slow_down(three, "a")
    three.links["a"].passes = FAST
    readers = slow_down(three, "b", 2.0)
    assert not three.links["b"].streams
    for stream, reader in readers.items():
        three.balanced.open(100 + stream, opening(stream), reader)
        assert three.place(100 + stream) == "a"
