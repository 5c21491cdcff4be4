"""All replicas of a service as one link: each session is at one of them, and moves only when that
one is lost, refuses it, or is much slower than others.

Has the methods of a link, so that who opens streams knows of one service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

from tandem.orchestrator.links.placement import Placement, SessionPlaces
from tandem.orchestrator.links.policy import EJECTION_SECONDS, OutlierDetection, choose, of_group
from tandem.orchestrator.rounds.stream import ReplicaLink, Subscriber
from tandem.protos.errors import Internal, TandemError
from tandem.protos.streams import Decoding, Drafting

Sent = TypeVar("Sent")
Received = TypeVar("Received")
log = structlog.get_logger()


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

    def __init__(self, links: Mapping[str, ReplicaLink[Sent, Received]] | None = None) -> None:
        self._links: dict[str, ReplicaLink[Sent, Received]] = {}
        self._watches: dict[str, Watch[Sent, Received]] = {}
        self._subscribers: dict[Subscriber[Received], None] = {}
        self._streams: dict[int, Placement[Received]] = {}
        self._sessions: dict[bytes, SessionPlaces] = {}
        self._count: Counter[str] = Counter()  # streams of each
        self._leaving: set[str] = set()
        self._outliers = OutlierDetection()
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

    def replica(self, stream: int) -> str:
        """The name of the replica where a stream is open."""
        placement = self._streams.get(stream)
        return placement.replica if placement else ""

    @property
    def load(self) -> tuple[float, float]:
        """Price and seconds per token: the mean over all that report them."""
        loads = [link.load for link in self._links.values() if link.connected and any(link.load)]
        count = max(1, len(loads))
        return sum(price for price, _ in loads) / count, sum(each for _, each in loads) / count

    def add(self, name: str, link: ReplicaLink[Sent, Received]) -> None:
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
        session = self._sessions.setdefault(context.session_id, SessionPlaces(context.session_id))
        usable = session.untried(self._open_to_new())
        groups = {name: self._links[name].group(stream) for name in usable}
        group = opening.group if isinstance(opening, Decoding) else ""
        candidates = session.nearest(self._outliers.best(of_group(group, groups)))
        if not candidates:
            return
        counts = {name: self._count[name] + self._links[name].others for name in candidates}
        replica = choose(context.client or context.session_id, counts)
        session.held.pop(replica, None)
        session.held[replica] = None
        link = self._links[replica]
        placement = self._streams[stream] = Placement(
            session, context.turn, replica, link, subscriber
        )
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

    def leave_slow(self, now: float) -> None:
        """Move the streams of replicas that are much slower than others with the same model; to be
        called again and again.
        """
        known, ejected = self._outliers, self._outliers.ejected
        links = {name: link for name, link in self._links.items() if link.connected}
        groups = {name: link.group(0) for name, link in links.items()}
        known.observe({name: link.passes for name, link in links.items()}, groups, now)
        for name in known.ejected - ejected:
            log.warning("a replica is slow", address=name, seconds=links[name].passes.newest)
        fast = set(self._open_to_new()) - known.outliers
        for stream, placed in list(self._streams.items()) if known.confirmed else ():
            same = {name for name in fast if groups[name] == groups.get(placed.replica)}
            rested = now - placed.session.left_at >= EJECTION_SECONDS[0]
            if placed.replica in known.confirmed and same - placed.session.refused and rested:
                self.drop(stream)
                placed.leave(now)

    def close(self, session_id: bytes, turn: int) -> None:
        """Have every replica that may hold a session forget it, unless it was opened with a newer
        turn.
        """
        for replica in self._sessions.pop(session_id, SessionPlaces(session_id)).held:
            if link := self._links.get(replica):
                link.close(session_id, turn)

    def on_connected(self) -> None:
        """A replica is connected; who has a stream at another stays there."""
        placed = {placement.subscriber for placement in self._streams.values()}
        for subscriber in [each for each in self._subscribers if each not in placed]:
            _report(subscriber, subscriber.connected)

    def on_lost(self, name: str) -> None:
        """A replica is lost, and with it its streams."""
        for stream, placed in [each for each in self._streams.items() if each[1].replica == name]:
            self.drop(stream)
            if not placed.answered:
                placed.session.lost.add(name)
            _report(placed.subscriber, placed.subscriber.lost)

    def _open_to_new(self) -> list[str]:
        links = self._links.items()
        return [name for name, link in links if link.connected and name not in self._leaving]


def _report(subscriber: Subscriber[Any], report: Callable[[], None]) -> None:
    """Call a subscriber; a bug in one must not affect the others."""
    try:
        report()
    except Exception as error:
        log.error("a session failed", exc_info=error)
        subscriber.failed(Internal("internal error; see the server's log"))
