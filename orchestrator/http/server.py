"""An HTTP server on the orchestrator's own event loop. The server limits how long connections stay
idle, and adds the common name of the client's certificate to each request. The server can refuse
requests whose Host header names another machine.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tandem.orchestrator.http.errors import body_of
from tandem.protos.address import joined, names_this_machine, unbracketed
from tandem.protos.errors import PermissionDenied, Unusable

# A request's state contains the common name of the client's certificate under this key.
CERTIFICATE = "certificate"
MAX_CONNECTIONS = 4096
HEAD_SECONDS = 20.0  # seconds within which the head of a request must arrive
# Seconds that a connection stays open between requests. The value exceeds the idle limits of
# clients and proxies (OpenAI's 5 s, load balancers' 60 s, Go's 90 s), because a request may be lost
# if the server closes the connection first.
IDLE_SECONDS = 120
UNREAD_SECONDS = 65.0  # seconds after which a client that reads nothing is disconnected
USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # socket option that only Linux has
LAST_SECONDS = 1  # seconds that unfinished answers get when the server stops


class _Connection(H11Protocol):
    """An HTTP connection with time limits. The head of the first request must arrive within
    HEAD_SECONDS after the connection was made. Each further request must begin to arrive within
    IDLE_SECONDS, and its head must be complete within HEAD_SECONDS after that. Each request's state
    contains the common name of the client's certificate.
    """

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Store the common name of the client's certificate, and start the time limit of the first
        request. Asyncio calls this method after the TLS handshake, which has verified the
        certificate.
        """
        super().connection_made(transport)
        subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
        names = dict(pair for part in subject for pair in part)
        self.app_state = {**self.app_state, CERTIFICATE: names.get("commonName", "")}
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Start the time limit of a request's head if it is not running yet. Asyncio calls this
        method with the data that a client has sent.
        """
        if not self._head:
            self._wait()
        super().data_received(data)

    def on_response_complete(self) -> None:
        """If a part of the next request has already arrived, start the time limit for its head.
        Uvicorn calls this method when a response has been sent. Uvicorn itself closes idle
        connections.
        """
        super().on_response_complete()
        self._forget()
        if self.conn.trailing_data[0]:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit of the next request. Asyncio calls this method when the connection
        has ended.
        """
        super().connection_lost(exc)
        self._forget()

    def _wait(self) -> None:
        self._forget()
        self._head = self.loop.call_later(HEAD_SECONDS, self._close)

    def _forget(self) -> None:
        if self._head:
            self._head.cancel()
        self._head = None

    def _close(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class _Server(uvicorn.Server):
    """A Uvicorn server that installs no signal handlers, because its process handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers. Uvicorn calls this method around its main loop."""
        yield


@asynccontextmanager
async def serving(
    app: ASGIApp,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    shared: bool = False,
) -> AsyncIterator[str]:
    """Serve `app` until this context ends. Yields the URL of the server. Port 0 means any free
    port. If `shared` is true, other processes may listen on the same port. Raises Unusable if the
    port cannot be opened.
    """
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=LAST_SECONDS,
        ssl_context_factory=(lambda *_: tls) if tls else None,
    )
    with _listening(host, port, shared) as listener:
        server = _Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            scheme = "https" if tls else "http"
            yield f"{scheme}://{joined(host, listener.getsockname()[1])}"
        finally:
            server.should_exit = True
            await asyncio.shield(running)


@contextmanager
def _listening(host: str, port: int, shared: bool) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in unbracketed(host) else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # without this option, unread bytes would stay in memory for ever, even after their
        # connection is closed
        if USER_TIMEOUT:
            listener.setsockopt(socket.IPPROTO_TCP, USER_TIMEOUT, int(UNREAD_SECONDS * 1000))
        try:
            listener.bind((unbracketed(host), port))
            listener.listen()
        except OSError as error:
            problem = f"HTTP port {port} on {host} cannot be opened: {error.strerror}"
            raise Unusable(problem) from error
        yield listener


def with_host_check(app: ASGIApp) -> ASGIApp:
    """Wrap `app` so that requests for other hosts than this machine are refused. This check
    protects a loopback port without authentication against DNS rebinding: a malicious website could
    let its own host name resolve to loopback, and its pages in a browser on this machine could then
    reach the port.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "")
        if names_this_machine(host):
            await app(scope, receive, send)
            return
        refused = PermissionDenied(f"the host {host[:100]!r} is not this machine")
        await JSONResponse(body_of(refused), 403)(scope, receive, send)

    return call
