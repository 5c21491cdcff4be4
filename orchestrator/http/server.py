"""An HTTP port on the orchestrator's own event loop: how long its connections live, who has opened
them, and by which names a port on loopback may be asked.
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

CERTIFICATE = "certificate"  # in the state of a request: the common name, empty without one
MAX_CONNECTIONS = 4096
HEAD_SECONDS = 20.0  # that a client may take for the head of a request
UNREAD_SECONDS = 65.0  # that it may read nothing; a delivery, which logs why, ends before
USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux
LAST_SECONDS = 1  # for answers that are on their way when the port is closed


class _Connection(H11Protocol):
    """Is closed when no request has come, or only a part of its head. Who has opened it is in the
    state of each of its requests.
    """

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio after the handshake, which has verified the certificate."""
        super().connection_made(transport)
        subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
        names = dict(pair for part in subject for pair in part)
        self.app_state = {**self.app_state, CERTIFICATE: names.get("commonName", "")}
        self._wait()

    def on_response_complete(self) -> None:
        """Called by uvicorn."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        super().connection_lost(exc)
        if self._head:
            self._head.cancel()

    def _wait(self) -> None:
        if self._head:
            self._head.cancel()
        self._head = self.loop.call_later(HEAD_SECONDS, self._close)

    def _close(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class _Server(uvicorn.Server):
    """Leaves signals to its process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Called by uvicorn."""
        yield


@asynccontextmanager
async def serving(
    app: ASGIApp,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    shared: bool = False,
) -> AsyncIterator[str]:
    """Serve until the scope ends; yields the URL. Port 0 takes a free one. Others may listen at one
    that is `shared`. Raises Unusable.
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
        if USER_TIMEOUT:  # or what is not read would be kept for ever, by a closed connection too
            listener.setsockopt(socket.IPPROTO_TCP, USER_TIMEOUT, int(UNREAD_SECONDS * 1000))
        try:
            listener.bind((unbracketed(host), port))
            listener.listen()
        except OSError as error:
            problem = f"HTTP port {port} on {host} cannot be opened: {error.strerror}"
            raise Unusable(problem) from error
        yield listener


def asked_by_own_names(app: ASGIApp) -> ASGIApp:
    """The same, but requests for other hosts are refused, as a port on loopback needs that has no
    authentication: a page in a browser here can ask a server of its own name, and that name can
    lead to loopback.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "")
        if names_this_machine(host):
            await app(scope, receive, send)
            return
        refused = PermissionDenied(f"the host {host[:100]!r} is not this machine")
        await JSONResponse(body_of(refused), 403)(scope, receive, send)

    return call
