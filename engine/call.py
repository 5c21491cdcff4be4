"""A caller's gRPC call to a model service, with the streams and the names of its sessions.

The names of sessions and clients are tied to the peer that sent them, before anything is looked up
by name. Therefore a session belongs to the peer that opened it.
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
    """One gRPC call, with the streams of all sessions of its caller, `peer`."""

    peer: str = ""
    streams: dict[int, CallStream[In, Out]] = field(default_factory=dict)
    outgoing: deque[tuple[int, Out]] = field(default_factory=deque)
    failures: deque[common_pb2.Failure] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    sent: float = 0.0  # the caller's clock in its newest message
    answered: bool = False  # whether the caller's first message was answered
    described: bool = False  # whether a response has described the model
    last: bool = False  # whether the service is stopping and sends no more messages
    # round trip of messages that are sent to the caller
    trip: RoundTrip = field(default_factory=RoundTrip)
    late: bool = False  # whether messages to the caller are delayed on the way

    def note(self, clock: float) -> None:
        """Note that the caller has read all messages that were sent up to `clock`, a time of this
        process's monotonic clock. `clock` is 0 if the caller does not report it.
        """
        now = monotonic()
        self.trip.received(clock, now, busy=not self.late)
        self.late = self.trip.late(now) > heartbeat.SECONDS


@dataclass(slots=True, eq=False)
class CallStream(JobStream[In, Out]):
    """A job's stream, the call that it belongs to, and the span of the job."""

    call: Call[In, Out] = field(kw_only=True)
    span: Span = field(kw_only=True)
    part: str = field(kw_only=True)  # the name of an item in the span

    @property
    def behind(self) -> bool:
        """Whether the caller or the connection to it takes items too slowly."""
        return self.call.late or len(self.outgoing) > BACKLOG

    def emit(self, item: Out) -> None:
        """Send an item to the caller. The item leaves when the step is over."""
        self.outgoing.append((self.stream_id, item))
        self.span.part(self.part)


def own(peer: str, name: bytes) -> bytes:
    """Tie the name of a session or a client to a peer; no other peer can make the same name. The
    given name may be empty. Without TLS there are no peers, and names stay as they were sent.
    """
    if not peer:
        return name
    return hashlib.sha256(peer.encode() + b"\0" + name).digest()


def owned(peer: str, context: Context) -> Context:
    """Return the context of an opening with its names tied to the peer."""
    session_id, client = own(peer, context.session_id), own(peer, context.client)
    return replace(context, session_id=session_id, client=client)
