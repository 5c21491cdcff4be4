"""Where a session is and was, and where one of its streams is open."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, TypeVar

import structlog

from tandem.orchestrator.rounds.stream import ReplicaLink, Subscriber
from tandem.protos.errors import Internal, TandemError, TransportLost

Received = TypeVar("Received")
log = structlog.get_logger()


@dataclass(slots=True)
class SessionPlaces:
    """Replicas that may hold it, the newest last; since something came, those that failed and those
    that were lost before they answered; and when it last left one that was slow.
    """

    session_id: bytes
    held: dict[str, None] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    left_at: float = -inf

    def untried(self, connected: Collection[str]) -> Collection[str]:
        """Those that have not failed since something came; all, once all have."""
        left = [name for name in connected if name not in self.refused]
        if not left:
            self.refused.clear()
        return left or connected

    def nearest(self, candidates: Collection[str]) -> Collection[str]:
        """Of those, where it is or was to be tried first, unless that was lost."""
        steady = [name for name in candidates if name not in self.lost] or candidates
        last = next(reversed(self.held), "")
        return [last] if last in steady else steady

    def answered(self) -> None:
        """Something came."""
        self.refused.clear()
        self.lost.clear()


@dataclass(slots=True, eq=False)
class Placement(Generic[Received]):
    """Where a stream is open; reports failures there on their way to the subscriber."""

    session: SessionPlaces
    turn: int
    replica: str
    link: ReplicaLink[Any, Received]
    subscriber: Subscriber[Received]
    answered: bool = False

    def connected(self) -> None:
        """The balanced link reports it."""

    def lost(self) -> None:
        """The balanced link reports it."""

    def receive(self, item: Received) -> None:
        """Called by a link."""
        self.answered = True
        self.session.answered()
        self.subscriber.receive(item)

    def failed(self, error: TandemError) -> None:
        """Called by a link."""
        self.session.refused.add(self.replica)
        self.subscriber.failed(error)

    def leave(self, now: float) -> None:
        """Have the replica forget the session, and its stream be opened at another."""
        self.session.left_at = now
        self.link.close(self.session.session_id, self.turn)
        try:
            self.subscriber.failed(TransportLost("the replica is much slower than another"))
        except Exception as error:  # a bug in one must not affect the others
            log.error("a session failed", exc_info=error)
            self.subscriber.failed(Internal("internal error; see the server's log"))
