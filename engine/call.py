"""A caller's gRPC call to a model service, with the streams and the names of its sessions.

Names of sessions and clients are hashed together with the peer that sent them, before they are
looked up. Therefore no peer can use a session of another peer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Generic, TypeVar

from tandem.engine.schedule.job_stream import BACKLOG, JobStream
from tandem.protos.service.tracing import Span
from tandem.protos.transport import heartbeat
from tandem.protos.transport.round_trip import RoundTrip
from tandem.protos.types import Context
from tandem.v1 import common_pb2

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(slots=True, eq=False)
class Call(Generic[In, Out]):
    """One gRPC call, with the streams of all sessions of the caller `peer`."""

    peer: str = ""
    streams: dict[int, CallStream[In, Out]] = field(default_factory=dict)
    outgoing: deque[tuple[int, Out]] = field(default_factory=deque)
    failures: deque[common_pb2.Failure] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    sent: float = 0.0  # the caller's clock in its newest message
    answered: bool = False  # whether the caller has got a response
    described: bool = False  # whether a response has described the model
    last: bool = False  # whether the service is stopping and sends no more messages
    # measures the round trip of messages to the caller
    trip: RoundTrip = field(default_factory=RoundTrip)
    late: bool = False  # whether messages to the caller are delayed on the way

    def note(self, clock: float) -> None:
        """Record that the caller has read all messages that were sent until the time `clock`,
        measured by this process's monotonic clock. `clock` is 0 if the caller does not report it.
        """
        now = monotonic()
        self.trip.received(clock, now, busy=not self.late)
        self.late = self.trip.late(now) > heartbeat.SECONDS


@dataclass(slots=True, eq=False)
class CallStream(JobStream[In, Out]):
    """A job's stream, together with its gRPC call and the tracing span of the job."""

    call: Call[In, Out] = field(kw_only=True)
    span: Span = field(kw_only=True)
    part: str = field(kw_only=True)  # the name under which the span records an item

    @property
    def behind(self) -> bool:
        """Whether the caller reads items too slowly, or the connection delays them."""
        return self.call.late or len(self.outgoing) > BACKLOG

    def emit(self, item: Out) -> None:
        """Queue an item for the caller. Queued items are sent when the current step is over."""
        self.outgoing.append((self.stream_id, item))
        self.span.part(self.part)


def own(peer: str, name: bytes) -> bytes:
    """Hash the name of a session or a client together with its peer, so that no other peer can
    produce the same name. `name` may be empty. Without TLS, callers cannot be identified by a
    certificate, so the given names are returned unchanged.
    """
    if not peer:
        return name
    return hashlib.sha256(peer.encode() + b"\0" + name).digest()


def owned(peer: str, context: Context) -> Context:
    """Return the context of an opening, with the names of its session and its client replaced by
    hashes of the names and the peer, as `own` returns them.
    """
    session_id, client = own(peer, context.session_id), own(peer, context.client)
    return replace(context, session_id=session_id, client=client)
