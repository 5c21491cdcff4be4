"""Where a session goes when its replica was lost and is there again."""

from __future__ import annotations

from tests.laws.test_balanced import Three, opening


def test_a_replica_that_is_lost_before_it_answers_is_not_tried_again_first() -> None:
    three = Three()
    three.balanced.open(1, opening(0), three.reader)
    first = three.place(1)
    for connected in (False, True):
        three.links[first].become(connected)
    three.balanced.open(2, opening(0), three.reader)
    second = three.place(2)
    assert second != first
    three.links[second].streams[2].receive("a fact")
    for connected in (False, True):
        three.links[second].become(connected)
    three.balanced.open(3, opening(0), three.reader)
    assert three.place(3) == second, "it has the session"


def test_a_replica_that_is_lost_before_it_answers_is_tried_again_if_no_other_is_like_it() -> None:
    three = Three()
    for name, link in three.links.items():
        link.model = "one" if name == "a" else "other"
    for stream in (1, 2, 3):
        three.balanced.open(stream, opening(0, group="one"), three.reader)
        assert three.place(stream) == "a"
        for connected in (False, True):
            three.links["a"].become(connected)
