"""One gRPC call to a service, which carries all sessions of a cell. A lost call is restarted. Items
are sent in as few messages as possible. Received items go to the subscriber of their stream.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Generic, TypeAlias

import structlog
from grpc import aio

from tandem.orchestrator.rounds.stream import Received, Sent, Subscriber
from tandem.protos.errors import Internal
from tandem.protos.service.tasks import background, first_done
from tandem.protos.streams import EncodedProposal, PassTimes
from tandem.protos.transport import heartbeat, status
from tandem.protos.transport.round_trip import RoundTrip
from tandem.protos.types import ModelDescription
from tandem.protos.wire.codec import decode_model, decode_passes
from tandem.protos.wire.requests import encode_closing, encode_item

BACK_OFF_SECONDS = (0.05, 1.0)
CONNECT_SECONDS = 30.0  # time limit to connect; the next attempt uses the newest certificates
CLOSE_SECONDS = 2.0
MESSAGE_BYTES = 1 << 20  # size limit of one message, unless one item is larger
MAX_PROPOSALS = 1 << 10  # above this many unsent items, proposals nobody awaits are dropped
MAX_ITEMS = 1 << 14  # above this many unsent items, the service counts as lost
MAX_CLOSING = 1 << 16  # maximum number of session closings that the service has not confirmed

ModelCheck: TypeAlias = Callable[[ModelDescription], str | None]  # reason to reject, or None
log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class Link(Generic[Sent, Received]):
    """Context manager that keeps a call to a service open and restarts the call if it is lost."""

    name: str  # the service's name, for the log
    call: Callable[..., Any]
    request: type[Any]
    incoming: str  # the field of a response that contains the items
    decode: Callable[[Any], Received]
    complete: Callable[[Any], None] = lambda request: None  # fills in other fields of a request
    check_model: ModelCheck = lambda model: None
    connected: bool = field(default=False, init=False)
    problem: str = field(default="", init=False)
    load: tuple[float, float] = field(default=(0.0, 0.0), init=False)  # price, seconds per token
    passes: PassTimes = field(default=PassTimes(), init=False)
    others: int = field(default=0, init=False)  # streams that other cells have at the service
    clock: float = field(default=0.0, init=False)  # the service's clock in its newest message
    _subscribers: dict[Subscriber[Received], None] = field(default_factory=dict, init=False)
    _streams: dict[int, Subscriber[Received]] = field(default_factory=dict, init=False)
    _outbox: deque[tuple[str, Any]] = field(default_factory=deque, init=False)  # (field, item)
    _closing: dict[tuple[bytes, int], float] = field(default_factory=dict, init=False)  # time sent
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)  # wakes the writer
    _full: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _trip: RoundTrip = field(default_factory=RoundTrip, init=False)
    _responses: int = field(default=0, init=False)
    _ending: bool = field(default=False, init=False)
    _group: str = field(default="", init=False)

    async def __aenter__(self) -> Link[Sent, Received]:
        self._scope = background(self._run())
        (self._task,) = await self._scope.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Send the items that are left in the outbox, but wait at most CLOSE_SECONDS."""
        self._ending = True
        self._wake.set()
        if self.connected:
            await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        await self._scope.__aexit__(*error)

    @property
    def round_trip(self) -> float:
        """The smoothed round trip to the service in seconds; 0 means not known."""
        return self._trip.seconds

    def group(self, stream: int) -> str:
        """Return the fingerprint of the service's model, the same for all streams."""
        return self._group

    def replica(self, stream: int) -> str:
        return ""

    def subscribe(self, subscriber: Subscriber[Received]) -> None:
        """From now on, tell the subscriber whenever the service is connected or lost."""
        self._subscribers[subscriber] = None

    def unsubscribe(self, subscriber: Subscriber[Received]) -> None:
        """Stop telling the subscriber when the service is connected or lost."""
        self._subscribers.pop(subscriber, None)

    def open(self, stream: int, opening: Sent, subscriber: Subscriber[Received]) -> None:
        """Open a stream. Items that arrive for the stream go to the subscriber."""
        self._streams[stream] = subscriber
        self.send(stream, opening)

    def drop(self, stream: int) -> None:
        """Forget a stream, so that items that still arrive for the stream are ignored."""
        self._streams.pop(stream, None)

    def send(self, stream: int, item: Sent) -> None:
        """Send an item in the next message. Items are dropped while the service is not connected.
        Proposals that nobody waits for are also dropped while the service reads too slowly.
        """
        waiting = len(self._outbox)
        optional = isinstance(item, EncodedProposal) and not item.awaited
        if self.connected and not (waiting > MAX_PROPOSALS and optional):
            self._outbox.append(encode_item(stream, item))
            self._wake.set()
            if waiting > MAX_ITEMS:
                self._full.set()

    def close(self, session_id: bytes, turn: int) -> None:
        """Tell the service to forget a session, unless it was opened with a newer turn."""
        if len(self._closing) < MAX_CLOSING:
            self._closing[session_id, turn] = inf
            if self.connected:
                self._outbox.append(encode_closing(session_id, turn))
                self._wake.set()

    async def _run(self) -> None:
        pause, most = BACK_OFF_SECONDS
        while not self._ending:
            problem, seen = "the service sends or reads nothing, or ended the call", self._responses
            began = monotonic()
            try:
                await self._run_call()
            except Exception as error:  # the link must reconnect after any error
                problem = status.problem_of(error)
            if self._responses == seen:
                self.problem = ""  # the service that had the problem no longer responds
            if self.connected:
                if monotonic() - began > most:  # the pause grows if each call ends early
                    pause = BACK_OFF_SECONDS[0]
                self._on_lost()
            if not self._ending:
                log.warning("a service is lost", service=self.name, problem=problem)
                await asyncio.sleep(pause * random.uniform(0.5, 1))
                pause = min(most, 2 * pause)

    async def _run_call(self) -> None:
        """Run one call until it ends or the service stops responding."""
        call = self.call(wait_for_ready=True)
        self._full.clear()
        self._trip.called()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await call.wait_for_connection()
            self._wake.set()
            silent = heartbeat.until_silent(lambda: self._responses, self._wake.set)
            unread = lambda: heartbeat.missed(self._trip.unread)  # noqa: E731
            deaf = heartbeat.until_silent(lambda: self._trip.newest, limit=unread)
            await first_done(self._read(call), self._write(call), silent, deaf, self._full.wait())
        finally:
            call.cancel()

    async def _write(self, call: aio.StreamStreamCall[Any, Any]) -> None:
        while not self._ending or self._outbox:
            if not self._outbox:
                await self._wake.wait()
                self._wake.clear()
            await call.write(self._message())
        await call.done_writing()
        await asyncio.Event().wait()  # the call ends when the service ends it or is too slow

    def _message(self) -> Any:
        """Take as much of the outbox as fits into one message, and return the message."""
        message, left = self.request(sent=monotonic()), MESSAGE_BYTES
        self.complete(message)
        while self._outbox:
            field, item = self._outbox[0]
            size = item.ByteSize()
            if size > left and left < MESSAGE_BYTES:
                break
            left -= size
            getattr(message, field).append(self._outbox.popleft()[1])
            if field == "closings":
                self._closing[item.session_id, item.turn] = message.sent
        self._trip.sent(message.sent, message.ByteSize())
        return message

    async def _read(self, call: aio.StreamStreamCall[Any, Any]) -> None:
        async for response in call:
            self._receive(response)
            if response.last:
                return

    def _receive(self, response: Any) -> None:
        self._responses += 1
        if response.HasField("model"):
            model = decode_model(response.model)
            self._group, self.problem = model.fingerprint, self.check_model(model) or ""
            if self.problem:
                log.warning("a service is not used", service=self.name, problem=self.problem)
        if self.problem:
            return
        if not self.connected:
            self._on_connected()
        items = getattr(response, self.incoming)
        if self._trip.received(response.sent, monotonic(), bool(items)) and self._closing:
            self._closing = {key: at for key, at in self._closing.items() if at > response.sent}
        self.load = getattr(response, "price", 0.0), getattr(response, "token_seconds", 0.0)
        self.passes = decode_passes(response.passes)
        self.clock = getattr(response, "clock", 0.0)
        self.others = max(0, response.streams - len(self._streams))
        for item in items:
            if subscriber := self._streams.get(item.stream):
                self._report(subscriber, partial(self._deliver, subscriber, item))
        for failure in response.failures:
            if subscriber := self._streams.pop(failure.stream, None):
                error = status.unpack(failure.status)
                self._report(subscriber, partial(subscriber.failed, error))

    def _deliver(self, subscriber: Subscriber[Received], item: Any) -> None:
        subscriber.receive(self.decode(item))

    def _report(self, subscriber: Subscriber[Received], report: Callable[[], None]) -> None:
        """Call `report`. If `report` raises, only this subscriber's session fails."""
        try:
            report()
        except Exception as error:
            log.error("a session failed", service=self.name, exc_info=error)
            for stream in [n for n, each in self._streams.items() if each is subscriber]:
                del self._streams[stream]
            subscriber.failed(Internal("internal error; see the server's log"))

    def _on_connected(self) -> None:
        self.connected = True
        for session_id, turn in list(self._closing):
            self.close(session_id, turn)
        for subscriber in list(self._subscribers):
            self._report(subscriber, subscriber.connected)

    def _on_lost(self) -> None:
        self.connected = False
        self._outbox.clear()
        self._streams.clear()
        for subscriber in list(self._subscribers):
            self._report(subscriber, subscriber.lost)
