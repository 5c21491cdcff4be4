"""A replica that leaves is drained: it gets no new sessions and loses none of its own. The tests
also check where a session goes whose replica was lost and has come back.
"""

from __future__ import annotations

from tests.laws.test_balanced import FakeLink, Reader, Three, opening


def filled() -> Three:
    three = Three()
    three.balanced.retain("abc")
    for stream in range(1, 20):
        three.balanced.open(stream, opening(stream), Reader())
    return three


def streams_of(three: Three, name: str) -> list[int]:
    return sorted(three.links[name].streams)


def test_streams_of_one_that_leaves_go_on_and_new_ones_are_opened_at_others() -> None:
    three = filled()
    before = streams_of(three, "a")
    assert before
    assert three.balanced.retain("bc") == ["b", "c", "a"], "it is still needed"
    for stream in range(100, 130):
        three.balanced.open(stream, opening(stream), Reader())
    assert streams_of(three, "a") == before
    three.balanced.send(before[0], "proposal")
    assert three.links["a"].sent == [(before[0], "proposal")]


def test_one_that_leaves_is_gone_when_its_last_stream_has_ended() -> None:
    three, calls = filled(), list[str]()
    three.balanced.drained = lambda: calls.append("drained")
    *earlier, last = streams_of(three, "a")
    three.balanced.retain("bc")
    for stream in earlier:
        three.balanced.drop(stream)
    assert not calls
    three.balanced.drop(last)
    assert calls == ["drained"]
    assert three.balanced.retain("bc") == ["b", "c"]


def test_one_that_leaves_and_is_lost_gives_its_streams_to_others() -> None:
    three, calls = filled(), list[str]()
    three.balanced.drained = lambda: calls.append("drained")
    reader = Reader()
    stream = streams_of(three, "a")[0]
    three.balanced.drop(stream)
    three.balanced.subscribe(reader)
    three.balanced.open(stream, opening(stream), reader)
    assert three.place(stream) == "a"
    three.balanced.retain("bc")
    three.links["a"].become(False)
    assert reader.events == ["lost"]
    assert calls == ["drained"]
    three.links["a"].become(True)
    three.balanced.open(200, opening(stream), reader)
    assert three.place(200) != "a", "it may come back, but it leaves"


def test_one_that_returns_while_it_leaves_is_used_again() -> None:
    three = Three()
    three.balanced.open(1, opening(1), Reader())
    name = three.place(1)
    assert three.balanced.retain(()) == [name]
    assert not three.balanced.connected, "no replica takes anything new"
    three.reader.events.clear()
    three.balanced.retain((name,))
    assert three.balanced.connected
    assert three.reader.events == ["connected"], "who waits for a replica may open"
    three.balanced.open(2, opening(2), three.reader)
    assert three.place(2) == name


def test_one_that_has_left_may_come_again_later() -> None:
    three = Three()
    assert three.balanced.retain("ab") == ["a", "b"]
    three.balanced.remove("c")
    three.balanced.retain("abc")
    three.links["c"] = FakeLink()
    three.balanced.add("c", three.links["c"])
    for stream in range(1, 20):
        three.balanced.open(stream, opening(stream), Reader())
    assert streams_of(three, "c")


def test_a_replica_that_is_lost_before_it_answers_is_not_tried_again_first() -> None:
    three = Three()
    three.balanced.open(1, opening(0), three.reader)
    first = three.place(1)
    for connected in (False, True):
        three.links[first].become(connected)
    three.balanced.open(2, opening(0), three.reader)
    second = three.place(2)
    assert second != first
    three.links[second].streams[2].receive("a commit")
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
