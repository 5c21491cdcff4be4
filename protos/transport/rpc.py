"""Channels and servers: keepalive, limits, health, reflection, request ids and error mapping.

Every gRPC port of the system is opened by `serving` and every channel by `connect`.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc import aio
from grpc_health.v1 import health as standard
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tandem.protos.address import joined, unbracketed
from tandem.protos.errors import Internal, InvalidRequest, TandemError, Unusable
from tandem.protos.transport import status
from tandem.protos.transport.health import Health

MAX_MESSAGE_BYTES = 4 << 20
MAX_CONCURRENT_CALLS = 2048
DRAIN_SECONDS = 5.0
LAST_SECONDS = 0.5  # for answers that are on their way
FREE_PORTS = range(20_000, 32_768)  # above those of Ray's workers, below the ephemeral ones
REQUEST_ID = "x-request-id"

log = structlog.get_logger()

LIMITS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 << 10),
]
CLIENT_OPTIONS = [
    *LIMITS,
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),  # without it a frozen peer goes unnoticed
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),  # an attempt may take so long; not a pause
    ("grpc.max_reconnect_backoff_ms", 500),
]
SERVER_OPTIONS = [
    *LIMITS,
    ("grpc.so_reuseport", 0),  # else two servers silently share a port
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
]

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def connect(address: str, *interceptors: aio.ClientInterceptor) -> aio.Channel:
    """A channel to a service of ours; connects lazily, and reconnects."""
    return aio.insecure_channel(address, options=CLIENT_OPTIONS, interceptors=interceptors)


def free_port(host: str, wanted: int = 0) -> int:
    """A port that is free, and that the system does not assign by itself; raises Unusable if the
    wanted one is taken.
    """
    problem, host = "", unbracketed(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in [wanted] if wanted else random.sample(FREE_PORTS, 100):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                problem = f"port {port} on {host} cannot be opened: {error.strerror}"
            else:
                return port
    raise Unusable(problem)


class ErrorInterceptor(aio.ServerInterceptor):
    """Wraps every handler: binds the request id to the log, turns exceptions into statuses."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Called by gRPC once per call."""
        handler = await continuation(details)
        given = dict(details.invocation_metadata or ()).get(REQUEST_ID)
        if handler is None or (handler.request_streaming and not handler.response_streaming):
            return handler
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                _stream(handler.stream_stream, str(given or "")),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        make = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        behaviour = handler.unary_stream if handler.response_streaming else handler.unary_unary
        wrap = _stream if handler.response_streaming else _unary
        return make(
            wrap(behaviour, str(given or "")),
            request_deserializer=_deferring(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


def _deferring(deserialise: Any) -> Any:
    """A deserialiser that returns its error, so that it is raised in the handler and gets a proper
    status.
    """

    def call(payload: bytes) -> Any:
        try:
            return deserialise(payload)
        except DecodeError:
            return InvalidRequest.of("request", "cannot be decoded")

    return call


def _check(request: Any) -> None:
    if isinstance(request, InvalidRequest):
        raise request


def _unary(behaviour: Any, request_id: str) -> Any:
    async def call(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                _check(request)
                return await behaviour(request, context)
            except Exception as error:
                await _abort(context, error)

    return call


def _stream(behaviour: Any, request_id: str) -> Any:
    async def call(request: Any, context: aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                _check(request)
                responses = behaviour(request, context)
                if inspect.isawaitable(responses):  # a handler that writes through the context
                    await responses
                    return
                async for response in responses:
                    yield response
            except Exception as error:
                await _abort(context, error)

    return call


async def _abort(context: aio.ServicerContext[Any, Any], error: Exception) -> None:
    """End the call with the error's status; a bug is logged and not described to the caller."""
    if isinstance(error, aio.AbortError):
        raise error
    if not isinstance(error, TandemError):
        log.error("a call failed", exc_info=error)
        error = Internal("internal error; see the server's log")
    reported = status.encode(error)
    await context.abort(reported.code, reported.details, tuple(reported.trailing_metadata or ()))


@asynccontextmanager
async def serving(
    host: str,
    port: int,
    servicer: object,
    *interceptors: aio.ServerInterceptor,
    health: Health | None = None,
    drained: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[str]:
    """Serve until the scope ends; yields the address. A servicer may have several services.

    What is reported to `health` is true of every service. When the scope ends, `drained` is
    awaited, during which the port is open but no service is SERVING; without it calls have a few
    seconds to end. Raises Unusable if the port is taken.
    """
    if port:
        free_port(host, port)  # first, because gRPC itself would write lines of its own
    server = aio.server(
        interceptors=(*interceptors, ErrorInterceptor()),
        options=SERVER_OPTIONS,
        maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
    )
    services = _services(servicer)
    for register in services.values():
        register(servicer, server)
    health = health or Health()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection(
        (*services, standard.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    try:
        bound = server.add_insecure_port(joined(host, port))
    except RuntimeError as error:
        raise Unusable(
            f"port {port} on {host} cannot be opened: it is in use or not ours"
        ) from error
    await server.start()
    health.know(services)
    try:
        yield joined(host, bound)
    finally:
        health.stopping()
        if drained:
            await drained()
        health.close()
        await asyncio.shield(server.stop(LAST_SECONDS if drained else DRAIN_SECONDS))


def _services(servicer: object) -> dict[str, Callable[[object, aio.Server], None]]:
    """What registers a servicer, by the full names of its services, found by their generated base
    classes.
    """
    found = {}
    for base in type(servicer).__mro__:
        stem, _, suffix = base.__module__.rpartition("_")
        if suffix == "grpc" and stem.endswith("_pb2"):
            service = base.__name__.removesuffix("Servicer")
            descriptor = sys.modules[stem].DESCRIPTOR.services_by_name[service]
            register = getattr(sys.modules[base.__module__], f"add_{base.__name__}_to_server")
            found[descriptor.full_name] = register
    return found


def metadata_of(request_id: str, *more: tuple[str, str]) -> Sequence[tuple[str, str]]:
    """Call metadata that carries the request id."""
    return ((REQUEST_ID, request_id), *more)
