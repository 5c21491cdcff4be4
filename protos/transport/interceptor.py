"""Wraps every call that a Tandem server answers: checks its caller, logs its request id, reports
its errors, and limits how many calls run at once. This module knows no service.

Every handler is registered with gRPC as one that takes a stream of requests. gRPC then reads no
part of a message before the caller has been checked, so that an unauthorized caller cannot make the
process buffer half a message.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc import aio

from tandem.protos.errors import Busy, Internal, InvalidRequest, TandemError
from tandem.protos.transport import status
from tandem.protos.transport.calls import CallMetrics
from tandem.protos.transport.guard import AllowAll, Guard

MAX_CONCURRENT_CALLS = 2048  # maximum number of concurrent calls; health checks do not count
REQUEST_ID, MAX_ID_LENGTH = "x-request-id", 128  # maximum characters of a logged request id

log = structlog.get_logger()

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Scope: TypeAlias = Callable[[], AbstractContextManager[None]]


class ErrorInterceptor(aio.ServerInterceptor):
    """Wraps every handler: adds the request id to log lines, turns exceptions into statuses, and
    refuses calls of Tandem's own services when too many run. A limit set in gRPC itself would also
    refuse health checks.
    """

    def __init__(self, guard: Guard | None = None, calls: CallMetrics | None = None) -> None:
        self._running = 0
        self._guard = guard or AllowAll()
        self._calls = calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the wrapped handler of a call. gRPC calls this once per call."""
        handler = await continuation(details)
        given = str(dict(details.invocation_metadata or ()).get(REQUEST_ID) or "")
        if handler is None:
            if self._calls:
                self._calls.unknown()
            return None
        method = str(details.method)
        running = nullcontext if method.startswith("/grpc.") else self._counted
        begun = partial(self._calls.observe, method) if self._calls else _uncounted
        call = CallWrapping(given, running, partial(self._guard.check, method), begun)
        # gRPC names a handler's function and constructor after the kind of call: unary_stream etc.
        streams, answers = handler.request_streaming, handler.response_streaming
        kinds = [("unary", "stream")[each] for each in (streams, answers)]
        wrapped = WRAPS[answers](getattr(handler, "_".join(kinds)), call, streams)
        deserialise, serialise = handler.request_deserializer, handler.response_serializer
        if self._calls:
            deserialise = self._calls.counting(method, "received", deserialise)
            serialise = self._calls.counting(method, "sent", serialise)
        make: Callable[..., Handler] = getattr(grpc, f"stream_{kinds[1]}_rpc_method_handler")
        return make(wrapped, deserialise, serialise)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Context manager that counts a running call; raises Busy if too many calls run."""
        if self._running >= MAX_CONCURRENT_CALLS:
            raise Busy(f"{self._running} calls are running, which is the maximum")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


def _uncounted(context: Any) -> None:
    """Do nothing, because a server without metrics counts no calls."""


async def _single_request(requests: AsyncIterator[Any]) -> Any:
    """Return the only request of a call; raises InvalidRequest if there is none."""
    async for request in requests:
        return request
    raise InvalidRequest.of("request", "is missing")


def _logged_as(request_id: str) -> AbstractContextManager[None]:
    """Return a context manager that adds the request id, cut to MAX_ID_LENGTH, to log lines."""
    known = {"request_id": request_id[:MAX_ID_LENGTH]} if request_id else {}
    return structlog.contextvars.bound_contextvars(**known)


@dataclass(frozen=True, slots=True)
class CallWrapping:
    """What wraps the handler of one call: its request id, the context manager in which it runs, the
    check of its caller, and the function that counts it.
    """

    request_id: str
    running: Scope
    check_caller: Callable[[Any], None]
    begun: Callable[[Any], None]


def _unary(behaviour: Any, wrapping: CallWrapping, streams: bool) -> Any:
    async def call(requests: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        async with _scope(context, wrapping, requests, streams) as given:
            return await behaviour(given, context)

    return call


def _stream(behaviour: Any, wrapping: CallWrapping, streams: bool) -> Any:
    async def call(requests: Any, context: aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        async with _scope(context, wrapping, requests, streams) as given:
            responses = behaviour(given, context)
            if inspect.isawaitable(responses):  # the handler sends the responses itself
                await responses
                return
            async for response in responses:
                yield response

    return call


@asynccontextmanager
async def _scope(
    context: aio.ServicerContext[Any, Any], wrapping: CallWrapping, requests: Any, streams: bool
) -> AsyncIterator[Any]:
    """Context manager in which a handler runs; yields the stream of requests or, for a call with
    one request, that request. A call with one request counts as running only after that request has
    been read. Every call stops counting before its status is sent, because gRPC delays the status
    for as long as the client does not read. gRPC itself limits the number of such delayed calls per
    connection.
    """
    wrapping.begun(context)
    with _logged_as(wrapping.request_id):
        try:
            wrapping.check_caller(context)
            given = requests if streams else await _single_request(requests)
            with wrapping.running():
                yield given
        except Exception as error:
            await _abort(context, error)


WRAPS = {False: _unary, True: _stream}  # key: whether the responses are a stream


async def _abort(context: aio.ServicerContext[Any, Any], error: Exception) -> None:
    """End a call with the error's status. A bug is logged, but its description is not sent to the
    caller.
    """
    if isinstance(error, aio.AbortError):
        raise error
    if isinstance(error, DecodeError):  # the client sent an invalid message in a stream
        error = InvalidRequest.of("request", "cannot be decoded")
    if not isinstance(error, TandemError):
        log.error("a call failed", exc_info=error)
        error = Internal("internal error; see the server's log")
    reported = status.encode(error)
    await context.abort(reported.code, reported.details, tuple(reported.trailing_metadata or ()))
