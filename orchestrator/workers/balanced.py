"""All replicas of a service as one link: each session is at one of them, and moves only when it
must.

Has the methods of a link, so that who opens streams knows of one service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tandem.orchestrator.fleet.routing import choose, of_group
from tandem.orchestrator.rounds.stream import ServiceLink, Subscriber
from tandem.protos.errors import TandemError
from tandem.protos.streams import Decoding, Drafting

Sent = TypeVar("Sent")
Received = TypeVar("Received")


@dataclass(slots=True, eq=False)
class Placement(Generic[Received]):
    """Where a stream is open; reports failures there on their way to the subscriber."""

    session: SessionPlaces
    replica: str
    link: ServiceLink[Any, Received]
    subscriber: Subscriber[Received]

    def connected(self) -> None:
        """The balanced link reports it."""

    def lost(self) -> None:
        """The balanced link reports it."""

    def receive(self, item: Received) -> None:
        """Called by a link."""
        self.session.refused.clear()
        self.subscriber.receive(item)

    def failed(self, error: TandemError) -> None:
        """Called by a link."""
        self.session.refused.add(self.replica)
        self.subscriber.failed(error)


@dataclass(slots=True)
class SessionPlaces:
    """Replicas that may hold it, the newest last; and those that failed since something came."""

    held: dict[str, None] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def untried(self, connected: Collection[str]) -> Collection[str]:
        """Those that have not failed since something came; all, once all have."""
        left = [name for name in connected if name not in self.refused]
        if not left:
            self.refused.clear()
        return left or connected

    def nearest(self, candidates: Collection[str]) -> Collection[str]:
        """Of those, where it is or was to be tried first."""
        last = next(reversed(self.held), "")
        return [last] if last in candidates else candidates


@dataclass(slots=True, eq=False)
class Watch(Generic[Sent, Received]):
    """Reports a link's loss and return to the balanced one."""

    balanced: BalancedLink[Sent, Received]
    name: str

    def connected(self) -> None:
        """Called by the link."""
        self.balanced.on_connected()

    def lost(self) -> None:
        """Called by the link."""
        self.balanced.on_lost(self.name)

    def receive(self, item: Received) -> None:
        """It has no stream."""

    def failed(self, error: TandemError) -> None:
        """It has no stream."""


class BalancedLink(Generic[Sent, Received]):
    """Links to replicas, by their names; they may come and go. One that leaves is drained: it gets
    no new streams, and those that it has may end.
    """

    def __init__(self, links: Mapping[str, ServiceLink[Sent, Received]] | None = None) -> None:
        self._links: dict[str, ServiceLink[Sent, Received]] = {}
        self._watches: dict[str, Watch[Sent, Received]] = {}
        self._subscribers: dict[Subscriber[Received], None] = {}
        self._streams: dict[int, Placement[Received]] = {}
        self._sessions: dict[bytes, SessionPlaces] = {}
        self._count: Counter[str] = Counter()  # streams of each
        self._leaving: set[str] = set()
        self.drained: Callable[[], None] = lambda: None  # called when one that leaves has none
        for name, link in (links or {}).items():
            self.add(name, link)

    @property
    def names(self) -> Collection[str]:
        """Of all replicas."""
        return self._links.keys()

    @property
    def connected(self) -> bool:
        """Whether any replica is that new streams may go to."""
        return bool(self._open_to_new())

    @property
    def problem(self) -> str:
        """Why a replica must not be used; empty if nothing is known against any."""
        return next((link.problem for link in self._links.values() if link.problem), "")

    @property
    def round_trip(self) -> float:
        """Seconds to a replica and back: the mean over all that are known."""
        known = [link.round_trip for link in self._links.values() if link.round_trip]
        return sum(known) / len(known) if known else 0.0

    def group(self, stream: int) -> str:
        """The fingerprint of the model where a stream is open."""
        placement = self._streams.get(stream)
        return placement.link.group(stream) if placement else ""

    @property
    def load(self) -> tuple[float, float]:
        """Price and seconds per token: the mean over all that report them."""
        loads = [link.load for link in self._links.values() if link.connected and any(link.load)]
        count = max(1, len(loads))
        return sum(price for price, _ in loads) / count, sum(each for _, each in loads) / count

    def add(self, name: str, link: ServiceLink[Sent, Received]) -> None:
        """There is one more replica."""
        self._links[name] = link
        watch = self._watches[name] = Watch(self, name)
        link.subscribe(watch)
        if link.connected:
            self.on_connected()

    def retain(self, members: Collection[str]) -> list[str]:
        """These are the members from now on. They, and those that leave but still have streams."""
        returned = self._leaving.intersection(members)
        self._leaving = self._links.keys() - set(members)
        if returned:
            self.on_connected()
        return [*members, *(name for name in sorted(self._leaving) if self._count[name])]

    def remove(self, name: str) -> None:
        """It is to be used no more; its streams are lost."""
        self._links.pop(name).unsubscribe(self._watches.pop(name))
        self._leaving.discard(name)
        self.on_lost(name)

    def subscribe(self, subscriber: Subscriber[Received]) -> None:
        """Report from now on when the service is connected and lost."""
        self._subscribers[subscriber] = None

    def unsubscribe(self, subscriber: Subscriber[Received]) -> None:
        """Report it no more."""
        self._subscribers.pop(subscriber, None)

    def open(self, stream: int, opening: Sent, subscriber: Subscriber[Received]) -> None:
        """Open a stream: where the session is, or where routing sends it."""
        assert isinstance(opening, Decoding | Drafting)
        context = opening.context
        session = self._sessions.setdefault(context.session_id, SessionPlaces())
        usable = session.untried(self._open_to_new())
        groups = {name: self._links[name].group(stream) for name in usable}
        group = opening.group if isinstance(opening, Decoding) else ""
        candidates = session.nearest(of_group(group, groups))
        if not candidates:
            return
        counts = {name: self._count[name] for name in candidates}
        replica = choose(context.client or context.session_id, counts)
        session.held.pop(replica, None)
        session.held[replica] = None
        link = self._links[replica]
        placement = self._streams[stream] = Placement(session, replica, link, subscriber)
        self._count[replica] += 1
        link.open(stream, opening, placement)

    def drop(self, stream: int) -> None:
        """Ignore what still arrives for a stream."""
        if placement := self._streams.pop(stream, None):
            self._count[placement.replica] -= 1
            placement.link.drop(stream)
            if placement.replica in self._leaving and not self._count[placement.replica]:
                self.drained()

    def send(self, stream: int, item: Sent) -> None:
        """Send an item to where its stream is open."""
        if placement := self._streams.get(stream):
            placement.link.send(stream, item)

    def close(self, session_id: bytes, turn: int) -> None:
        """Have every replica that may hold a session forget it, unless it was opened with a newer
        turn.
        """
        for replica in self._sessions.pop(session_id, SessionPlaces()).held:
            if link := self._links.get(replica):
                link.close(session_id, turn)

    def on_connected(self) -> None:
        """A replica is connected; who has a stream at another stays there."""
        placed = {placement.subscriber for placement in self._streams.values()}
        for subscriber in [each for each in self._subscribers if each not in placed]:
            subscriber.connected()

    def on_lost(self, name: str) -> None:
        """A replica is lost, and with it its streams."""
        placed = [(s, p.subscriber) for s, p in self._streams.items() if p.replica == name]
        for stream, subscriber in placed:
            self.drop(stream)
            subscriber.lost()

    def _open_to_new(self) -> list[str]:
        links = self._links.items()
        return [name for name, link in links if link.connected and name not in self._leaving]
