"""Several replicas serve as reliably as one that never fails."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.orchestrator.links.balanced import BalancedLink
from tandem.orchestrator.links.policy import SLACK
from tandem.protos.errors import Busy, Internal, TandemError
from tandem.protos.streams import Decoding, PassTimes, Proposal
from tandem.protos.types import Context, SamplingParams


class FakeLink:
    """A link that remembers what it is given."""

    def __init__(self, round_trip: float = 0.0, load: tuple[float, float] = (0.0, 0.0)) -> None:
        self.connected, self.round_trip, self.load = True, round_trip, load
        self.problem, self.model, self.passes = "", "", PassTimes()
        self.others = 0
        self.subscribers: list[Any] = []
        self.streams: dict[int, Any] = {}
        self.sent: list[tuple[int, Any]] = []
        self.closed: list[tuple[bytes, int]] = []
        self.subscribe, self.unsubscribe = self.subscribers.append, self.subscribers.remove

    def open(self, stream: int, opening: Any, subscriber: Any) -> None:
        self.streams[stream] = subscriber

    def group(self, stream: int) -> str:
        return self.model

    def replica(self, stream: int) -> str:
        return ""

    def drop(self, stream: int) -> None:
        self.streams.pop(stream, None)

    def send(self, stream: int, item: Any) -> None:
        self.sent.append((stream, item))

    def close(self, session_id: bytes, turn: int) -> None:
        self.closed.append((session_id, turn))

    def become(self, connected: bool) -> None:
        self.connected = connected
        if not connected:
            self.streams.clear()
        for subscriber in self.subscribers:
            subscriber.connected() if connected else subscriber.lost()


class Reader:
    """A subscriber that remembers what is reported to it."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def connected(self) -> None:
        self.events.append("connected")

    def lost(self) -> None:
        self.events.append("lost")

    def receive(self, item: object) -> None:
        self.events.append(item)

    def failed(self, error: TandemError) -> None:
        self.events.append(type(error))


def opening(session: int, client: bytes = b"", group: str = "") -> Decoding:
    context = Context(bytes([session]) * 16, 1, 0, (1,), client=client)
    return Decoding(context, SamplingParams(), 9, group=group)


class Three:
    """Three replicas, and the replica that each stream is at."""

    def __init__(self) -> None:
        self.links = {name: FakeLink() for name in "abc"}
        self.balanced: BalancedLink[Any, Any] = BalancedLink(self.links)
        self.reader = Reader()
        self.balanced.subscribe(self.reader)

    def place(self, stream: int) -> str:
        (place,) = [name for name, link in self.links.items() if stream in link.streams]
        return place


@pytest.fixture
def three() -> Three:
    return Three()


@pytest.mark.parametrize("session", range(20))
def test_a_session_stays_among_replicas_that_compute_the_same_while_there_are_some(
    three: Three, session: int
) -> None:
    for name, link in three.links.items():
        link.model = "one" if name in "ab" else "other"
    three.balanced.open(1, opening(session, group="one"), three.reader)
    first = three.place(1)
    assert (first in "ab", three.balanced.group(1)) == (True, "one")
    three.links[first].become(False)
    three.balanced.open(2, opening(session, group="one"), three.reader)
    assert three.place(2) == ("b" if first == "a" else "a")
    three.links[three.place(2)].become(False)
    three.balanced.open(3, opening(session, group="one"), three.reader)
    assert (three.place(3), three.balanced.group(3), three.balanced.group(2)) == ("c", "other", "")
    assert (three.balanced.replica(3), three.balanced.replica(2)) == ("c", "")


def test_a_lost_replica_costs_its_own_streams_alone(three: Three) -> None:
    readers = {stream: Reader() for stream in range(1, 20)}
    for stream, reader in readers.items():
        three.balanced.subscribe(reader)
        three.balanced.open(stream, opening(stream), reader)
    places = {stream: three.place(stream) for stream in readers}
    three.links["a"].become(False)
    for stream, reader in readers.items():
        assert reader.events == (["lost"] if places[stream] == "a" else [])
        if places[stream] == "a":
            three.balanced.open(stream + 100, opening(stream), reader)
            assert three.place(stream + 100) != "a"
    three.links["a"].become(True)
    assert all("connected" not in reader.events for reader in readers.values())
    assert three.reader.events == ["connected"], "who has no stream may open one"


def test_a_session_that_was_refused_tries_the_others_first(three: Three) -> None:
    tried = []
    for stream in range(1, 7):
        three.balanced.open(stream, opening(3), three.reader)
        tried.append(three.place(stream))
        three.links[tried[-1]].streams[stream].failed(Busy("full"))
        three.balanced.drop(stream)
    assert set(tried[:3]) == set(tried[3:]) == set("abc")


def test_what_arrives_forgives(three: Three) -> None:
    three.balanced.open(1, opening(3), three.reader)
    first = three.place(1)
    three.links[first].streams[1].failed(Busy("full"))
    three.balanced.drop(1)
    three.balanced.open(2, opening(3), three.reader)
    second = three.place(2)
    three.links[second].streams[2].receive("commit")
    three.links[second].become(False)
    three.balanced.open(3, opening(3), three.reader)
    assert three.place(3) == first, "it may have recovered"


def test_whoever_may_hold_a_session_is_to_forget_it(three: Three) -> None:
    three.balanced.open(1, opening(3), three.reader)
    first = three.place(1)
    three.links[first].become(False)
    three.balanced.open(2, opening(3), three.reader)
    second = three.place(2)
    three.balanced.close(bytes([3]) * 16, 7)
    closed = {name: link.closed for name, link in three.links.items() if link.closed}
    assert closed == {first: [(bytes([3]) * 16, 7)], second: [(bytes([3]) * 16, 7)]}


def test_sessions_of_a_client_share_a_replica_until_it_is_crowded(three: Three) -> None:
    places = []
    for stream in range(1, 20):
        three.balanced.open(stream, opening(stream, b"client"), three.reader)
        places.append(three.place(stream))
    assert len(set(places[:4])) == 1
    assert len(set(places)) == 3


def test_cells_together_share_a_clients_sessions_among_replicas() -> None:
    """Each cell learns from the replicas how many sessions the other cells have there."""
    cells = [Three() for _ in range(8)]
    for number in range(64):
        cell = cells[number % len(cells)]
        cell.balanced.open(number, opening(number, b"client"), cell.reader)
        for name in "abc":
            of_each = [len(each.links[name].streams) for each in cells]
            for each, own in zip(cells, of_each, strict=True):
                each.links[name].others = sum(of_each) - own
    loads = [sum(len(cell.links[name].streams) for cell in cells) for name in "abc"]
    assert max(loads) - min(loads) <= SLACK + 1


def test_a_replica_that_comes_later_is_used() -> None:
    reader, link, balanced = Reader(), FakeLink(), BalancedLink[Any, Any]()
    balanced.subscribe(reader)
    balanced.open(1, opening(1), reader)
    assert not balanced.connected, "there is no replica"
    balanced.add("d", link)
    assert reader.events == ["connected"]
    balanced.open(2, opening(1), reader)
    assert 2 in link.streams
    balanced.remove("d")
    assert not balanced.connected


def test_a_replica_that_goes_loses_its_streams_and_is_never_used_again(three: Three) -> None:
    for stream in range(1, 20):
        three.balanced.open(stream, opening(stream), Reader())
    three.balanced.open(99, opening(99), three.reader)
    gone = three.links.pop(three.place(99))
    (name,) = set("abc") - set(three.links)
    three.balanced.remove(name)
    assert three.reader.events == ["lost"]
    assert not gone.streams
    assert not gone.subscribers
    three.balanced.send(99, Proposal(3))
    for stream in range(100, 130):
        three.balanced.open(stream, opening(stream), Reader())
        assert three.place(stream) != name
    three.balanced.close(opening(99).context.session_id, 1)
    assert not gone.sent
    assert not gone.closed


def test_loads_and_round_trips_are_means_of_those_that_report_them() -> None:
    links = FakeLink(0.1, (0.2, 4.0)), FakeLink(0.3, (0.4, 2.0)), FakeLink()
    balanced: BalancedLink[Any, Any] = BalancedLink({str(i): link for i, link in enumerate(links)})
    assert balanced.round_trip == pytest.approx(0.2)
    assert balanced.load == pytest.approx((0.3, 3.0))
    assert BalancedLink[Any, Any]({"x": FakeLink()}).load == (0.0, 0.0)


def test_a_bug_in_one_session_keeps_no_other_at_a_lost_replica(three: Three) -> None:
    class Broken(Reader):
        def lost(self) -> None:
            raise RuntimeError("a bug")

    readers = [Broken(), Reader()]
    for stream, reader in enumerate(readers):
        three.balanced.open(stream, opening(5), reader)
    place = three.place(0)
    assert three.place(1) == place
    three.links[place].become(False)
    assert readers[0].events == [Internal]
    assert readers[1].events == ["lost"]
