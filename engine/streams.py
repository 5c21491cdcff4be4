"""The server side of a model service's gRPC streams. Each opening starts a job. Items from the
caller go to the job's inbox. All items that jobs emit for a caller in one step are sent in one
message.

One gRPC call carries all sessions of one caller. This module does not interpret the items, which
are commits and proposals.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar

import structlog

from tandem.engine.call import Call, CallStream, own, owned
from tandem.engine.schedule.job_stream import JobStream
from tandem.engine.schedule.scheduler import ModelThread
from tandem.engine.schedule.task import Job
from tandem.protos.errors import Internal, SessionMiss, StaleTurn, TandemError
from tandem.protos.service import tracing
from tandem.protos.service.drain import Drain
from tandem.protos.streams import Decoding, Drafting, PassTimes
from tandem.protos.transport import heartbeat, status
from tandem.v1 import common_pb2

SILENCE_SECONDS = 5.0  # seconds without a message after which a caller counts as lost

In = TypeVar("In")
Out = TypeVar("Out")
Opening = TypeVar("Opening", Decoding, Drafting)
Request = TypeVar("Request")
Response = TypeVar("Response")
log = structlog.get_logger()


class StreamServer(Generic[In, Out]):
    """Serves the gRPC calls of all callers of one service. Create this object on the service's
    event loop.
    """

    def __init__(
        self, thread: ModelThread, drain: Drain | None = None, spans: tuple[str, str] = ("", "")
    ) -> None:
        """`spans` holds two names for tracing: the name of a job's span, and the name of an item
        that the job sends.
        """
        self._thread = thread
        self._drain = drain or Drain()
        self._spans = spans
        self._finished = False
        self._loop = asyncio.get_running_loop()
        self._calls: set[Call[In, Out]] = set()
        self.live: dict[bytes, CallStream[In, Out]] = {}  # the newest stream of each session id
        thread.after_step = self._after_step

    @property
    def passes(self) -> PassTimes:
        """How long forward passes currently take."""
        return self._thread.progress.passes(perf_counter())

    async def serve(
        self,
        requests: AsyncIterator[Request],
        receive: Callable[[Request, Call[In, Out]], None],
        respond: Callable[[Call[In, Out]], Response],
        peer: str = "",
    ) -> AsyncGenerator[Response, None]:
        """Serve one call until its caller ends it, or is silent for too long. `receive` handles a
        message from the caller. `respond` builds a message from the items to send, and is called at
        least once per heartbeat. The service ends a call only when the service stops, because
        messages that were sent could be lost if a call ends while its caller writes
        (grpc/grpc#36066).
        """
        call: Call[In, Out] = Call(peer)
        self._calls.add(call)
        reading = asyncio.create_task(self._read(requests, call, receive))
        try:
            while not reading.done():
                with suppress(TimeoutError):
                    async with asyncio.timeout(heartbeat.SECONDS):
                        await call.changed.wait()
                call.changed.clear()
                call.last = self._finished and not (call.outgoing or call.failures)
                yield respond(call)
                if call.last:
                    break
                if self._finished:
                    call.changed.set()
            await reading
        finally:
            reading.cancel()
            self._calls.discard(call)

    def open(
        self,
        call: Call[In, Out],
        stream_id: int,
        opening: Opening,
        start: Callable[[Opening, JobStream[In, Out]], Job],
    ) -> JobStream[In, Out] | None:
        """Start a job for an opening. End the older job of the same session, and the older job
        whose stream has the same ID. Returns the job's stream, or None if the opening failed.
        """
        context, request_id = owned(call.peer, opening.context), opening.request_id
        opening = replace(opening, context=context)
        name, part = self._spans
        span = tracing.begin(name, opening.traceparent, request_id=request_id)
        stream: CallStream[In, Out] = CallStream(
            call.outgoing, stream_id, context.turn, call=call, span=span, part=part
        )
        older = self.live.get(context.session_id)
        try:
            if older and older.turn >= context.turn:
                raise StaleTurn(
                    f"turn {context.turn} is stale: the session is at turn {older.turn}"
                )
            if not older:
                self._drain.check()
            stream.task = self._thread.submit(context.session_id, lambda: start(opening, stream))
            self._drain.begin_one()
        except TandemError as error:
            span.end(error)
            self.fail(call, stream_id, error)
            return None
        if older:
            self.end(older, StaleTurn(f"turn {context.turn} opened the session again"))
        if namesake := call.streams.get(stream_id):
            self.end(namesake)
        call.streams[stream_id] = self.live[context.session_id] = stream
        over = partial(self._done, stream, context.session_id, request_id)

        def done(answer: Future[Any]) -> None:
            error = None if answer.cancelled() else answer.exception()
            self._loop.call_soon_threadsafe(over, error)

        stream.task.answer.add_done_callback(done)
        return stream

    def fail(self, call: Call[In, Out], stream_id: int, error: TandemError) -> None:
        """Report to the caller that a stream failed."""
        call.failures.append(common_pb2.Failure(stream=stream_id, status=status.pack(error)))
        call.changed.set()

    def close(
        self,
        call: Call[In, Out],
        closings: Iterable[common_pb2.Closing],
        forget: Callable[[bytes, int], None],
    ) -> None:
        """Close sessions: end their jobs, and forget each session once its earlier submitted work
        is done. Ignores a closing that is older than its session's newest opening.
        """
        for closing in closings:
            session_id, turn = own(call.peer, closing.session_id), closing.turn
            stream = self.live.get(session_id)
            if stream and stream.turn > turn:
                continue
            if stream:
                self.end(stream, SessionMiss("the session was closed"))
            self._thread.submit(session_id, partial(forget, session_id, turn), closing=True)

    async def drained(self) -> None:
        """Accept no new sessions, let running jobs finish, and then end all calls."""
        await self._drain.finish()
        self._finished = True
        for call in self._calls:
            call.changed.set()

    async def _read(
        self,
        requests: AsyncIterator[Request],
        call: Call[In, Out],
        receive: Callable[[Request, Call[In, Out]], None],
    ) -> None:
        """Receive messages until the caller ends the call or is silent for too long; then end the
        call's jobs.
        """
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SILENCE_SECONDS) as silence:
                    async for request in requests:
                        silence.reschedule(self._loop.time() + SILENCE_SECONDS)
                        receive(request, call)
                        self._thread.wake()
                        if not call.answered:
                            call.answered = True
                            call.changed.set()
        finally:
            call.changed.set()
            for stream in list(call.streams.values()):
                self.end(stream)

    def end(self, stream: CallStream[In, Out], reason: TandemError | None = None) -> None:
        """End a stream and its job. If there is a `reason`, it is sent to the caller as an
        error.
        """
        if stream.call.streams.get(stream.stream_id) is not stream:
            return  # the stream has ended, or its ID now belongs to another stream
        del stream.call.streams[stream.stream_id]
        if reason:
            self.fail(stream.call, stream.stream_id, reason)
        if stream.task:
            self._thread.cancel(stream.task)

    def _done(
        self,
        stream: CallStream[In, Out],
        owner: bytes,
        request_id: str,
        error: BaseException | None,
    ) -> None:
        """Clean up after a job; if it failed and its stream is open, send the caller the error."""
        self._drain.end_one()
        stream.span.end(error)
        if self.live.get(owner) is stream:
            del self.live[owner]
        if error is not None and not isinstance(error, TandemError):
            log.error("a session failed", exc_info=error, request_id=request_id)
            error = Internal("internal error; see the server's log")
        self.end(stream, error)

    def _after_step(self) -> None:
        """Have the event loop send the items that jobs have queued in a step. The model thread
        calls this after each step.
        """
        if any(call.outgoing for call in list(self._calls)):
            self._loop.call_soon_threadsafe(self._announce)

    def _announce(self) -> None:
        for call in self._calls:
            if call.outgoing:
                call.changed.set()
