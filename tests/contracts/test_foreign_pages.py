"""Which requests a page of another site, open in a browser on this machine, may make to a loopback
port.
"""

from __future__ import annotations

import asyncio
import http.client

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tandem.orchestrator.http import body, server
from tandem.orchestrator.http.server import with_host_check
from tandem.protos.address import names_this_machine
from tandem.protos.service.pages import Pages, pages_served
from tests.waiting import LIMIT

OWN = (
    "127.0.0.1:8000",
    "localhost:8000",
    "LOCALHOST",
    "[::1]:1",
    "a.localhost",
    "x.internal:8",
    "",
)
FOREIGN = ("evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1:8000", "[", "localhost.evil")


@pytest.mark.parametrize(("hosts", "wanted"), [(OWN, True), (FOREIGN, False)])
def test_names_of_this_machine_are_those_that_lead_nowhere_else(
    hosts: tuple[str, ...], wanted: bool
) -> None:
    assert [names_this_machine(host) for host in hosts] == [wanted] * len(hosts)


def ask(port: int, method: str, **headers: str) -> int:
    """Return the status of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, "/metrics", b"{}" if method == "POST" else None, given)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_pages_of_a_service_are_not_read_under_a_foreign_name() -> None:
    with pages_served("127.0.0.1", 0, Pages(CollectorRegistry())) as address:
        port = int(address.rpartition(":")[2])
        assert ask(port, "GET") == 200
        assert ask(port, "GET", host=f"evil.example:{port}") == 403


async def test_the_http_api_takes_json_from_those_who_know_its_name() -> None:
    bodies = body.BodyReader()

    async def read(request: Request) -> Response:
        try:
            async with bodies.read(request, "") as content:
                return PlainTextResponse(content)
        except body.NotJson:
            return PlainTextResponse("", 415)

    app = with_host_check(Starlette(routes=[Route("/metrics", read, methods=["POST"])]))
    async with server.serving(app, "127.0.0.1", 0) as url:
        port = int(url.rpartition(":")[2])
        json = {"content_type": "application/json; charset=utf-8"}
        assert await asyncio.to_thread(ask, port, "POST", **json) == 200
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            assert await asyncio.to_thread(ask, port, "POST", content_type=kind) == 415
        foreign = json | {"host": "evil.example"}
        assert await asyncio.to_thread(ask, port, "POST", **foreign) == 403
