"""How long a connection to the HTTP port stays open without a request, or with an answer that is
not read.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tandem.orchestrator.http import server
from tests.waiting import until

SECONDS = 0.1
LARGE = 16 << 20  # more than the system buffers for a client
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"
LONGEST_KEPT = 90  # seconds that Go's HTTP client keeps an idle connection
ServerOfTests = server._Server
LINE = "0100007F:{:04X} 0100007F:{:04X} "  # the line of a loopback connection in the system's table


def server_holds(line: str) -> bool:
    """Return whether the server's end of a connection exists."""
    return line in Path("/proc/net/tcp").read_text(encoding="ascii")


def connected(url: str, sent: bytes) -> socket.socket:
    """Return a connection on which bytes wait before the server accepts it, so that they count as
    in time.
    """
    connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
    connection.sendall(sent)
    return connection


async def read(url: str, sent: bytes) -> bytes:
    """Return what comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection(sock=connected(url, sent))
    received = await reader.read()
    writer.close()
    return received


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\n" + HEAD])
async def test_a_connection_without_a_whole_head_is_closed(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The server closes a connection before the first request and within the next head; a
    connection that waits for its answer stays open.
    """
    monkeypatch.setattr(server, "HEAD_SECONDS", SECONDS)

    async def slow(request: Request) -> Response:
        """Answer after a connection that was made later has been closed."""
        assert await read(str(request.app.state.url), b"") == b""
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/", slow)])
    async with server.serving(app, "127.0.0.1", 0) as url:
        app.state.url = url
        answer = await read(url, sent)
    assert answer.endswith(b"done") == (b"\r\n\r\n" in sent)


async def test_a_connection_between_requests_stays_open_longer_than_clients_keep_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the server may close a connection while a client sends its next request on it. A
    connection that was made later, and on which nothing is sent, shows that time has passed.
    """
    monkeypatch.setattr(server, "HEAD_SECONDS", SECONDS)
    configs: list[uvicorn.Config] = []
    monkeypatch.setattr(
        server, "_Server", lambda config: configs.append(config) or ServerOfTests(config)
    )

    async def answer(request: Request) -> Response:
        return PlainTextResponse("done")

    async with server.serving(Starlette(routes=[Route("/", answer)]), "127.0.0.1", 0) as url:
        reader, writer = await asyncio.open_connection(sock=connected(url, HEAD + b"\r\n"))
        for _ in range(2):
            assert await reader.readuntil(b"done")
            assert await read(url, b"") == b""
            writer.write(HEAD + b"\r\n")
        assert await reader.readuntil(b"done")
        writer.write(HEAD)
        assert await reader.read() == b"", "a head that has begun is limited as before"
        writer.close()
    assert configs[0].timeout_keep_alive == server.IDLE_SECONDS > LONGEST_KEPT


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can limit the time")
async def test_a_client_that_reads_nothing_of_a_whole_answer_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "UNREAD_SECONDS", SECONDS)
    answered = asyncio.Event()

    async def large(request: Request) -> Response:
        answered.set()
        return PlainTextResponse(b"x" * LARGE)

    app = Starlette(routes=[Route("/", large)])
    async with server.serving(app, "127.0.0.1", 0) as url:
        with connected(url, HEAD + b"\r\n") as connection:
            line = LINE.format(int(url.rpartition(":")[2]), connection.getsockname()[1])
            await until(lambda: server_holds(line))
            await answered.wait()
            await until(lambda: not server_holds(line), "the connection is lost")
