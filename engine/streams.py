"""The serving end of a model service's streams: openings become jobs, what arrives for them goes to
their inboxes, and what they say goes out, all of a step in one message.

One gRPC call carries all sessions of one caller. Knows neither facts nor guesses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, TypeVar

import structlog

from engine.schedule.port import Port
from engine.schedule.scheduler import ModelThread
from engine.schedule.task import Job
from protos.errors import Internal, SessionMiss, StaleTurn, TandemError
from protos.tandem.v1 import common_pb2
from protos.transport import status
from protos.types import Context

HEARTBEAT_SECONDS = 0.5  # a silent side says something
SILENCE_SECONDS = 5.0  # a caller that says nothing for so long is gone

In = TypeVar("In")
Out = TypeVar("Out")
Request = TypeVar("Request")
Response = TypeVar("Response")
log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Call(Generic[In, Out]):
    """One caller's stream."""

    ports: dict[int, Opening[In, Out]] = field(default_factory=dict)
    outgoing: deque[tuple[int, Out]] = field(default_factory=deque)
    failures: deque[common_pb2.Failure] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    heard: float = field(default_factory=monotonic)
    sent: float = 0.0  # the caller's clock in its newest message
    greeted: bool = False  # whether its first message was answered


@dataclass(slots=True, eq=False)
class Opening(Port[In, Out]):
    """A port, and the stream that it came by."""

    call: Call[In, Out] = field(kw_only=True)


class Streams(Generic[In, Out]):
    """All callers of one service; to be made on its event loop."""

    def __init__(self, thread: ModelThread) -> None:
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._calls: set[Call[In, Out]] = set()
        self._live: dict[bytes, Opening[In, Out]] = {}  # by session
        thread.settled = self._settled

    async def serve(
        self,
        requests: AsyncIterator[Request],
        receive: Callable[[Request, Call[In, Out]], None],
        respond: Callable[[Call[In, Out]], Response],
    ) -> AsyncIterator[Response]:
        """One call until its caller ends it, or is silent for too long. `receive` takes a message,
        `respond` makes one of what there is to say; a call that has nothing to say sends one every
        half second.
        """
        call: Call[In, Out] = Call()
        self._calls.add(call)
        reading = asyncio.create_task(self._read(requests, call, receive))
        try:
            while not reading.done() and monotonic() - call.heard < SILENCE_SECONDS:
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await call.changed.wait()
                except TimeoutError:
                    pass
                call.changed.clear()
                yield respond(call)
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
            self._calls.discard(call)
            for port in list(call.ports.values()):
                self._end(port)

    def open(
        self,
        call: Call[In, Out],
        stream: int,
        context: Context,
        request_id: str,
        start: Callable[[Port[In, Out]], Job],
    ) -> Port[In, Out] | None:
        """Start a job for an opening; it ends the older one of its session."""
        port: Opening[In, Out] = Opening(call.outgoing, stream, context.turn, call=call)
        older = self._live.get(context.session_id)
        try:
            if older and older.turn >= context.turn:
                raise StaleTurn(f"turn {context.turn} of a session that is at turn {older.turn}")
            port.task = self._thread.submit(context.session_id, lambda: start(port))
        except TandemError as error:
            self.fail(call, stream, error)
            return None
        if older:
            self._end(older, StaleTurn(f"turn {context.turn} opened the session anew"))
        call.ports[stream] = self._live[context.session_id] = port

        def done(answer: Future[Any]) -> None:
            error = None if answer.cancelled() else answer.exception()
            self._loop.call_soon_threadsafe(self._done, port, context.session_id, request_id, error)

        port.task.answer.add_done_callback(done)
        return port

    def fail(self, call: Call[In, Out], stream: int, error: TandemError) -> None:
        """Say that an opening failed."""
        call.failures.append(common_pb2.Failure(stream=stream, status=status.pack(error)))
        call.changed.set()

    def close(self, session_id: bytes, forget: Callable[[bytes], None]) -> None:
        """End a session's job and forget the session, in turn with the other work on it."""
        if port := self._live.get(session_id):
            self._end(port, SessionMiss("the session was closed"))
        self._thread.submit(session_id, lambda: forget(session_id), closing=True)

    async def _read(
        self,
        requests: AsyncIterator[Request],
        call: Call[In, Out],
        receive: Callable[[Request, Call[In, Out]], None],
    ) -> None:
        try:
            async for request in requests:
                call.heard = monotonic()
                receive(request, call)
                self._thread.wake()
                if not call.greeted:
                    call.greeted = True
                    call.changed.set()
        finally:
            call.changed.set()

    def _end(self, port: Opening[In, Out], reason: TandemError | None = None) -> None:
        """End a job; whoever opened it and did not ask for that is told."""
        if reason:
            self.fail(port.call, port.stream, reason)
        port.call.ports.pop(port.stream, None)
        if port.task:
            self._thread.desert(port.task)

    def _done(
        self,
        port: Opening[In, Out],
        owner: bytes,
        request_id: str,
        error: BaseException | None,
    ) -> None:
        """A job is done; whoever still waits for it is told if it failed."""
        if self._live.get(owner) is port:
            del self._live[owner]
        if port.call.ports.get(port.stream) is not port:  # it was ended, or is another by now
            return
        del port.call.ports[port.stream]
        if error is None:
            return
        if not isinstance(error, TandemError):
            log.error("a session failed", exc_info=error, request_id=request_id)
            error = Internal("internal error; see the server's log")
        self.fail(port.call, port.stream, error)

    def _settled(self) -> None:
        """Called by the model thread after a step: what was said may leave."""
        if any(call.outgoing for call in list(self._calls)):
            self._loop.call_soon_threadsafe(self._announce)

    def _announce(self) -> None:
        for call in self._calls:
            if call.outgoing:
                call.changed.set()
