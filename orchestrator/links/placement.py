"""The replicas that a session has used, and the replica where a stream of the session is open."""

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
class SessionAffinity:
    """The replicas of one session. `held` are the replicas that may hold the session, the newest
    last. `refused` are the replicas that reported a failure. `lost` are the replicas whose
    connection was lost before they sent an item. When an item arrives, `refused`
    and `lost` are cleared. `left_at` is the time at which the session last left a slow replica.
    """

    session_id: bytes
    held: dict[str, None] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    left_at: float = -inf

    def untried(self, connected: Collection[str]) -> Collection[str]:
        """Return the connected replicas that have not failed since the last item arrived. If every
        connected replica has failed, return all of them.
        """
        left = [name for name in connected if name not in self.refused]
        if not left:
            self.refused.clear()
        return left or connected

    def nearest(self, candidates: Collection[str]) -> Collection[str]:
        """Return the candidates to try first. Lost candidates are excluded, unless all candidates
        were lost. If one of the remaining candidates is the session's newest replica, only this
        candidate is returned.
        """
        steady = [name for name in candidates if name not in self.lost] or candidates
        last = next(reversed(self.held), "")
        return [last] if last in steady else steady

    def answered(self) -> None:
        """Record that an item arrived: forget which replicas failed or were lost."""
        self.refused.clear()
        self.lost.clear()


@dataclass(slots=True, eq=False)
class Placement(Generic[Received]):
    """The replica where a stream is open. A placement passes items and errors on to the subscriber,
    and records in the session that the replica answered or failed.
    """

    session: SessionAffinity
    turn: int
    replica: str
    link: ReplicaLink[Any, Received]
    subscriber: Subscriber[Received]
    answered: bool = False

    def connected(self) -> None:
        """Do nothing, because the balanced link reports the connection."""

    def lost(self) -> None:
        """Do nothing, because the balanced link reports the loss."""

    def receive(self, item: Received) -> None:
        """Note that the replica answers, and pass the item on."""
        self.answered = True
        self.session.answered()
        self.subscriber.receive(item)

    def failed(self, error: TandemError) -> None:
        """Note that the replica failed, and pass the error on."""
        self.session.refused.add(self.replica)
        self.subscriber.failed(error)

    def leave(self, now: float) -> None:
        """Close the session at this replica; the subscriber then opens a stream at another one."""
        self.session.left_at = now
        self.link.close(self.session.session_id, self.turn)
        try:
            self.subscriber.failed(TransportLost("the replica is much slower than another one"))
        except Exception as error:  # a bug in one subscriber must not affect the others
            log.error("a session failed", exc_info=error)
            self.subscriber.failed(Internal("internal error; see the server's log"))
