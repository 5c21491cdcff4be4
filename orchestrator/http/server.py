"""An HTTP port on the orchestrator's own event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from tandem.orchestrator.http.peer import CertifiedProtocol
from tandem.protos.address import joined, unbracketed
from tandem.protos.errors import Unusable

MAX_CONNECTIONS = 4096
HEAD_SECONDS = 20.0  # that a client may take for the head of a request
UNREAD_SECONDS = 65.0  # that it may read nothing; a delivery, which logs why, ends before
USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux
LAST_SECONDS = 1  # for answers that are on their way when the port is closed


class _Connection(CertifiedProtocol):
    """Is closed when no request has come, or only a part of its head."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        super().connection_made(transport)
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
    app: ASGIApp, host: str, port: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve until the scope ends; yields the URL. Port 0 takes a free one. Raises Unusable."""
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
    with _listening(host, port) as listener:
        server = _Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            scheme = "https" if tls else "http"
            yield f"{scheme}://{joined(host, listener.getsockname()[1])}"
        finally:
            server.should_exit = True
            await asyncio.shield(running)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in unbracketed(host) else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if USER_TIMEOUT:  # or what is not read would be kept for ever, by a closed connection too
            listener.setsockopt(socket.IPPROTO_TCP, USER_TIMEOUT, int(UNREAD_SECONDS * 1000))
        try:
            listener.bind((unbracketed(host), port))
            listener.listen()
        except OSError as error:
            problem = f"HTTP port {port} on {host} cannot be opened: {error.strerror}"
            raise Unusable(problem) from error
        yield listener
