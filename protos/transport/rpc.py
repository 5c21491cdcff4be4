"""Channels and servers: keepalive, limits, health, reflection, request ids and error mapping.

Every gRPC port of the system is opened by `serving` and every channel by `connect`.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos.errors import Internal, InvalidRequest, TandemError, Unusable
from protos.transport import status

MAX_MESSAGE_BYTES = 4 << 20
MAX_CONCURRENT_CALLS = 2048
DRAIN_SECONDS = 5.0
UNASKED = range(20_000, 32_768)  # above the ports of Ray's workers, below those for any purpose
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
    """A channel to a service of ours; connects lazily and again after every loss."""
    return aio.insecure_channel(address, options=CLIENT_OPTIONS, interceptors=interceptors)


def free_port(host: str, wanted: int = 0) -> int:
    """A port that nobody listens on, and that nobody is given who asks for any; raises Unusable if
    the wanted one is taken.
    """
    problem = ""
    for port in [wanted] if wanted else random.sample(UNASKED, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                problem = f"port {port} on {host} cannot be opened: {error.strerror}"
            else:
                return port
    raise Unusable(problem)


class Boundary(aio.ServerInterceptor):
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
            request_deserializer=_tolerant(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


def _tolerant(deserialise: Any) -> Any:
    """A deserialiser whose failure reaches the handler, where it gets a proper status."""

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
    code, message, metadata = status.encode(error)
    await context.abort(code, message, tuple(metadata))


@asynccontextmanager
async def serving(
    host: str,
    port: int,
    services: dict[str, Callable[[aio.Server], None]],
    *guards: aio.ServerInterceptor,
) -> AsyncIterator[str]:
    """Serve until the scope ends; yields the address. `services` maps full names to registrations.

    Health knows "" and every service; both are NOT_SERVING while draining. Raises Unusable if the
    port is taken.
    """
    if port:
        free_port(host, port)  # asks first: gRPC itself would write lines of its own
    server = aio.server(
        interceptors=(*guards, Boundary()),
        options=SERVER_OPTIONS,
        maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
    )
    for register in services.values():
        register(server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection(
        (*services, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise Unusable(
            f"port {port} on {host} cannot be opened: it is in use or not ours"
        ) from error
    await server.start()
    for name in ("", *services):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield f"{host}:{bound}"
    finally:
        await checks.enter_graceful_shutdown()
        await asyncio.shield(server.stop(DRAIN_SECONDS))


def metadata_of(request_id: str, *more: tuple[str, str]) -> Sequence[tuple[str, str]]:
    """Call metadata that carries the request id."""
    return ((REQUEST_ID, request_id), *more)
