"""Opens channels and servers, with keepalive, limits, health and reflection.

Every gRPC port of the system is opened by `serving` and every channel by `connect`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic

from grpc import ChannelConnectivity as State
from grpc import aio
from grpc_health.v1 import health as standard
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tandem.protos.address import joined, unbracketed
from tandem.protos.errors import Unusable
from tandem.protos.tls import Tls
from tandem.protos.transport.calls import CallMetrics
from tandem.protos.transport.credentials import RotatingChannel, port_credentials, server_name
from tandem.protos.transport.guard import Guard
from tandem.protos.transport.health import Health
from tandem.protos.transport.interceptor import REQUEST_ID, ErrorInterceptor

MAX_MESSAGE_BYTES = 4 << 20
MAX_NEW_CALLS = 10_000  # maximum calls that wait for their handlers to start
DRAIN_SECONDS = 5.0
LAST_SECONDS = 0.5  # seconds that unfinished calls have to end after the drain
WHILE_DRAINED = 86_400.0  # seconds, longer than any drain
POLL_SECONDS = 0.1  # interval of polling a channel's state
# ports above those of Ray's workers and below the range of ephemeral ports
FREE_PORTS = range(20_000, 32_768)

LIMITS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 << 10),
]
CLIENT_OPTIONS = [
    *LIMITS,
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # a ping waits behind a large message on a slow
    # connection; without the timeout a frozen peer goes unnoticed
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),  # in fact, the timeout of a connection attempt
    ("grpc.max_reconnect_backoff_ms", 500),
]
SERVER_OPTIONS = [
    *LIMITS,
    ("grpc.max_concurrent_streams", MAX_NEW_CALLS),  # maximum number of calls per connection
    ("grpc.server.max_pending_requests", MAX_NEW_CALLS),  # gRPC cancels calls above this limit
    ("grpc.server.max_pending_requests_hard_limit", MAX_NEW_CALLS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
]


@dataclass(frozen=True, slots=True)
class Security:
    """How a port is protected: by TLS, by a guard, and by whether callers must have certificates.
    At `certificate_port`, an additional port of the services, callers must always have
    certificates.
    """

    tls: Tls | None = None
    guard: Guard | None = None
    certificates: bool = True
    certificate_port: int | None = None


def connect(address: str, tls: Tls | None = None, role: str = "orchestrator") -> aio.Channel:
    """Return a channel to a Tandem service. The channel connects when it is first used, and
    reconnects after a lost connection. If the host is an IP address, the peer's certificate must
    have the name `role`. Raises Unusable if `tls` cannot be used.
    """
    if tls is None:
        return aio.insecure_channel(address, options=CLIENT_OPTIONS)
    name = ("grpc.ssl_target_name_override", server_name(address, role))
    options = [*CLIENT_OPTIONS, name]
    return RotatingChannel(
        tls, lambda credentials: aio.secure_channel(address, credentials, options=options)
    )


async def reconnected(channel: aio.Channel, after: float) -> None:
    """Wait until a channel has lost its connection and is connected again, or until it is closed. A
    new connection counts only after `after` seconds, because it may be lost again at once. The
    state is polled, because gRPC's own wait for another state cannot be cancelled, and leaks
    memory.
    """
    earliest, lost = monotonic() + after, False
    while (state := channel.get_state(try_to_connect=True)) is not State.SHUTDOWN:
        if state is State.READY and lost and monotonic() >= earliest:
            return
        lost |= state is not State.READY
        await asyncio.sleep(POLL_SECONDS)


INSECURE = Security()


def free_port(host: str, wanted: int = 0, shared: bool = False) -> int:
    """Return the wanted port, or by default a random free port outside the ephemeral range. Raises
    Unusable if the wanted port is taken. A `shared` port counts as free if only processes that
    share it have opened it.
    """
    problem, host = "", unbracketed(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in [wanted] if wanted else random.sample(FREE_PORTS, 100):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                problem = f"port {port} on {host} cannot be opened: {error.strerror}"
            else:
                return port
    raise Unusable(problem)


@asynccontextmanager
async def serving(
    host: str,
    port: int,
    servicer: object | tuple[object, ...],
    *interceptors: aio.ServerInterceptor,
    health: Health | None = None,
    leave: Callable[[float], Awaitable[None]] | None = None,
    lame_duck_seconds: float = 0.0,
    drained: Callable[[], Awaitable[None]] | None = None,
    security: Security = INSECURE,
    calls: CallMetrics | None = None,
    shared: bool = False,
) -> AsyncIterator[str]:
    """Context manager that serves one or several servicers; yields the address.

    A problem reported to `health` affects all services. At the end, every service is reported as
    NOT_SERVING, but the port stays open for new calls until `leave(lame_duck_seconds)` returns.
    Then the port is closed, and running calls continue until `drained` returns. Without `leave` the
    port stays open until `drained` returns. Without `drained` running calls have a few seconds to
    end. `calls` counts every call, even a refused one. Other servers may listen at a `shared` port,
    too. Raises Unusable if the port is taken.

    gRPC cancels calls that arrive while it closes a port. Connections therefore get a maximum age
    below the lame-duck time, so that load balancers move clients to other servers first.
    """
    if port:
        # check first: if gRPC itself fails to open the port, it writes log lines of its own
        free_port(host, port, shared)
    intercepting = ErrorInterceptor(security.guard, calls), *interceptors
    server = aio.server(interceptors=intercepting, options=_options(lame_duck_seconds, shared))
    health = health or Health()
    services = _offer(server, servicer, health, calls)
    bound = _open_port(server, host, port, security.tls, security.certificates)
    if security.certificate_port is not None:
        _open_port(server, host, security.certificate_port, security.tls, True)
    await server.start()
    health.know(services)
    try:
        yield joined(host, bound)
    finally:
        health.stopping()
        stops = []
        if leave:
            await leave(lame_duck_seconds)
            stops.append(asyncio.create_task(server.stop(WHILE_DRAINED)))
        if drained:
            await drained()
        health.close()
        await asyncio.shield(server.stop(LAST_SECONDS if drained else DRAIN_SECONDS))
        await asyncio.gather(*stops)


def _options(lame_duck_seconds: float, shared: bool) -> list[tuple[str, int]]:
    """Return the gRPC options of a server."""
    # gRPC itself extends the maximum connection age by up to 10 %
    age = [("grpc.max_connection_age_ms", round(lame_duck_seconds * 500))]
    reused = ("grpc.so_reuseport", int(shared))  # by default gRPC shares ports silently
    return [*SERVER_OPTIONS, reused, *(age if lame_duck_seconds else ())]


def _offer(
    server: aio.Server,
    servicer: object | tuple[object, ...],
    health: Health,
    calls: CallMetrics | None,
) -> Iterable[str]:
    """Register the servicers, the health service and reflection at a server. Returns the full names
    of the services.
    """
    services = _services(*(servicer if isinstance(servicer, tuple) else (servicer,)))
    for register in services.values():
        register(server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = (*services, standard.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    if calls:
        calls.know(names)
    return services


def _open_port(
    server: aio.Server, host: str, port: int, tls: Tls | None, certificates: bool
) -> int:
    """Let a server listen at a port, and return its number. Raises Unusable."""
    credentials = tls and port_credentials(tls, certificates)
    address = joined(host, port)
    try:
        if credentials:
            return server.add_secure_port(address, credentials)
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise Unusable(
            f"port {port} on {host} cannot be opened: it is in use, or this process may not open it"
        ) from error


def _services(*servicers: object) -> dict[str, Callable[[aio.Server], None]]:
    """Map the full name of each service to a function that registers its servicer. The services are
    found from the generated base classes of the servicers.
    """
    # gRPC generates a function `add_SERVICEServicer_to_server` and a class `SERVICEServicer` in a
    # module `..._pb2_grpc`, but no table of them, so the services are found from these names.
    found: dict[str, Callable[[aio.Server], None]] = {}
    for servicer, base in ((each, base) for each in servicers for base in type(each).__mro__):
        stem, _, suffix = base.__module__.rpartition("_")
        if suffix == "grpc" and stem.endswith("_pb2"):
            service = base.__name__.removesuffix("Servicer")
            descriptor = sys.modules[stem].DESCRIPTOR.services_by_name[service]
            register = getattr(sys.modules[base.__module__], f"add_{base.__name__}_to_server")
            found[descriptor.full_name] = partial(register, servicer)
    return found


def metadata_of(request_id: str, *more: tuple[str, str]) -> Sequence[tuple[str, str]]:
    """Return call metadata that carries the request id."""
    return ((REQUEST_ID, request_id), *more)
