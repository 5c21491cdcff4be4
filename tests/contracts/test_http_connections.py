"""How long a connection to the HTTP port lasts on which nothing is asked, or nothing read."""

from __future__ import annotations

import asyncio
import socket

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tandem.orchestrator.http import server

SECONDS = 0.3
LARGE = 16 << 20  # more than the system holds for a client
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"


async def slow(request: Request) -> Response:
    """Longer than a head may take."""
    await asyncio.sleep(3 * SECONDS)
    return PlainTextResponse("done")


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\n" + HEAD])
async def test_a_connection_without_a_whole_head_is_closed(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The first, and those behind an answer; one that waits for its answer is not."""
    monkeypatch.setattr(server, "HEAD_SECONDS", SECONDS)
    app = Starlette(routes=[Route("/", slow)])
    async with server.serving(app, "127.0.0.1", 0) as url, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(sent)
        answer = await reader.read()
        assert answer.endswith(b"done") == (b"\r\n\r\n" in sent)
        writer.close()


async def large(request: Request) -> Response:
    """A whole answer."""
    return PlainTextResponse(b"x" * LARGE)


async def read_after(pause: float, seconds: float, url: str) -> int:
    """Bytes of an answer that arrive if a client pauses first, and then for so long per MiB."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 10)
        writer.write(HEAD + b"connection: close\r\n\r\n")
        await asyncio.sleep(pause)
        found = 0
        try:
            while piece := await reader.read(1 << 20):
                found += len(piece)
                await asyncio.sleep(seconds * len(piece) / (1 << 20))
        except ConnectionError:
            pass
        writer.close()
        return found


async def test_a_client_that_reads_nothing_of_a_whole_answer_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "UNREAD_SECONDS", SECONDS)
    app = Starlette(routes=[Route("/", large)])
    async with server.serving(app, "127.0.0.1", 0) as url, asyncio.timeout(60):
        assert await read_after(5 * SECONDS, 0, url) < LARGE


async def test_a_client_that_reads_slowly_gets_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "UNREAD_SECONDS", 3.0)
    app = Starlette(routes=[Route("/", large)])
    async with server.serving(app, "127.0.0.1", 0) as url, asyncio.timeout(60):
        assert await read_after(0, 0.2, url) > LARGE
