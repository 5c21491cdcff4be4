"""Presents all replicas of a service as a single link. Each session is at one replica, and moves
only when that replica is lost, refuses the session, or is much slower than other replicas.

The balanced link has the methods of a link, so its callers see a single service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

from tandem.orchestrator.links.placement import Placement, SessionAffinity
from tandem.orchestrator.links.policy import EJECTION_SECONDS, OutlierDetection, choose, in_group
from tandem.orchestrator.rounds.stream import ReplicaLink, Subscriber
from tandem.protos.errors import Internal, TandemError
from tandem.protos.streams import Decoding, Drafting

Sent = TypeVar("Sent")
Received = TypeVar("Received")
log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class ReplicaWatch(Generic[Sent, Received]):
    """Tells the balanced link when a replica is connected and when it is lost."""

    balanced: BalancedLink[Sent, Received]
    name: str

    def connected(self) -> None:
        """Tell the balanced link that the replica is connected."""
        self.balanced.on_connected()

    def lost(self) -> None:
        """Tell the balanced link that the replica is lost."""
        self.balanced.on_lost(self.name)

    def receive(self, item: Received) -> None:
        """Do nothing, because a watch only observes the connection and has no stream."""

    def failed(self, error: TandemError) -> None:
        """Do nothing, because a watch only observes the connection and has no stream."""


class BalancedLink(Generic[Sent, Received]):
    """The links to the replicas of a service, by the replicas' names. Replicas may be added and
    removed. A replica that leaves is drained: it gets no new streams, but its open streams may
    continue to their end.
    """

    def __init__(self, links: Mapping[str, ReplicaLink[Sent, Received]] | None = None) -> None:
        self._links: dict[str, ReplicaLink[Sent, Received]] = {}
        self._watches: dict[str, ReplicaWatch[Sent, Received]] = {}
        self._subscribers: dict[Subscriber[Received], None] = {}
        self._streams: dict[int, Placement[Received]] = {}
        self._sessions: dict[bytes, SessionAffinity] = {}
        self._count: Counter[str] = Counter()  # number of streams at each replica
        self._leaving: set[str] = set()
        self._outliers = OutlierDetection()
        # called when a leaving replica has no more streams
        self.drained: Callable[[], None] = lambda: None
        for name, link in (links or {}).items():
            self.add(name, link)

    @property
    def names(self) -> Collection[str]:
        """The names of all replicas."""
        return self._links.keys()

    @property
    def connected(self) -> bool:
        """Whether there is a replica that new streams may go to."""
        return bool(self._open_to_new())

    @property
    def problem(self) -> str:
        """The reason why a replica must not be used; empty if no replica has a problem."""
        return next((link.problem for link in self._links.values() if link.problem), "")

    @property
    def round_trip(self) -> float:
        """The mean round trip in seconds, over the replicas whose round trip is known."""
        known = [link.round_trip for link in self._links.values() if link.round_trip]
        return sum(known) / len(known) if known else 0.0

    def group(self, stream: int) -> str:
        """Return the fingerprint of the model that serves a stream; empty if it is not known."""
        placement = self._streams.get(stream)
        return placement.link.group(stream) if placement else ""

    def replica(self, stream: int) -> str:
        """Return the name of the replica where a stream is open; empty if it is not open."""
        placement = self._streams.get(stream)
        return placement.replica if placement else ""

    @property
    def load(self) -> tuple[float, float]:
        """The mean `price` and mean seconds per token, over the replicas that report them."""
        loads = [link.load for link in self._links.values() if link.connected and any(link.load)]
        count = max(1, len(loads))
        return sum(price for price, _ in loads) / count, sum(each for _, each in loads) / count

    def add(self, name: str, link: ReplicaLink[Sent, Received]) -> None:
        """Add a replica and its link."""
        self._links[name] = link
        watch = self._watches[name] = ReplicaWatch(self, name)
        link.subscribe(watch)
        if link.connected:
            self.on_connected()

    def retain(self, members: Collection[str]) -> list[str]:
        """Set the replicas that are members; all other replicas are leaving. Returns the names of
        the members, followed by the names of leaving replicas that still have streams.
        """
        returned = self._leaving.intersection(members)
        self._leaving = self._links.keys() - set(members)
        if returned:
            self.on_connected()
        return [*members, *(name for name in sorted(self._leaving) if self._count[name])]

    def remove(self, name: str) -> None:
        """Remove a replica, and report that its streams are lost."""
        self._links.pop(name).unsubscribe(self._watches.pop(name))
        self._leaving.discard(name)
        self.on_lost(name)

    def subscribe(self, subscriber: Subscriber[Received]) -> None:
        """From now on, tell the subscriber whenever the service is connected or lost."""
        self._subscribers[subscriber] = None

    def unsubscribe(self, subscriber: Subscriber[Received]) -> None:
        """Stop telling the subscriber when the service is connected or lost."""
        self._subscribers.pop(subscriber, None)

    def open(self, stream: int, opening: Sent, subscriber: Subscriber[Received]) -> None:
        """Open a stream at the replica that has the session, or at one that the policy chooses."""
        assert isinstance(opening, Decoding | Drafting)
        context = opening.context
        session = self._sessions.setdefault(context.session_id, SessionAffinity(context.session_id))
        usable = session.untried(self._open_to_new())
        groups = {name: self._links[name].group(stream) for name in usable}
        group = opening.group if isinstance(opening, Decoding) else ""
        candidates = session.nearest(self._outliers.best(in_group(group, groups)))
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
        """Forget a stream, so that items that still arrive for the stream are ignored."""
        if placement := self._streams.pop(stream, None):
            self._count[placement.replica] -= 1
            placement.link.drop(stream)
            if placement.replica in self._leaving and not self._count[placement.replica]:
                self.drained()

    def send(self, stream: int, item: Sent) -> None:
        """Send an item to the replica where its stream is open."""
        if placement := self._streams.get(stream):
            placement.link.send(stream, item)

    def leave_outliers(self, now: float) -> None:
        """Move streams away from outliers, which are replicas that are much slower than other
        replicas with the same model. Call this method periodically.
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
        """Tell every replica that may hold a session to forget the session, unless it was opened
        with a newer turn.
        """
        for replica in self._sessions.pop(session_id, SessionAffinity(session_id)).held:
            if link := self._links.get(replica):
                link.close(session_id, turn)

    def on_connected(self) -> None:
        """Tell the subscribers without an open stream that a replica is connected. A subscriber
        with a stream stays at its replica.
        """
        placed = {placement.subscriber for placement in self._streams.values()}
        for subscriber in [each for each in self._subscribers if each not in placed]:
            _report(subscriber, subscriber.connected)

    def on_lost(self, name: str) -> None:
        """Report the loss of a replica to the subscribers with streams there."""
        for stream, placed in [each for each in self._streams.items() if each[1].replica == name]:
            self.drop(stream)
            if not placed.answered:
                placed.session.lost.add(name)
            _report(placed.subscriber, placed.subscriber.lost)

    def _open_to_new(self) -> list[str]:
        links = self._links.items()
        return [name for name, link in links if link.connected and name not in self._leaving]


def _report(subscriber: Subscriber[Any], report: Callable[[], None]) -> None:
    """Call `report`. If `report` raises, only this subscriber's session fails."""
    try:
        report()
    except Exception as error:
        log.error("a session failed", exc_info=error)
        subscriber.failed(Internal("internal error; see the server's log"))
