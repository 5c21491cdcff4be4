"""How long a connection to the HTTP port lasts on which nothing is asked."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tandem.orchestrator.http import server

SECONDS = 0.3
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
