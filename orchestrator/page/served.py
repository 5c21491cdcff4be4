"""The pages that the orchestrator serves over HTTP beside its metrics: the status, at `/` for
people and at `/status.json` for programs, and `/targets` for Prometheus. The pages of this module
only show data, and change nothing.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from wsgiref.util import application_uri

from google.protobuf.json_format import MessageToJson

from tandem.orchestrator.frontend.servicer import encode_status
from tandem.orchestrator.frontend.status import Status
from tandem.orchestrator.page.html import page
from tandem.orchestrator.page.style import STYLE
from tandem.protos.service.pages import Pages
from tandem.protos.service.tasks import from_thread

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

FRESH_SECONDS = 1.0  # seconds for which a collected status is shown to all viewers
LATE_SECONDS = 5.0  # time limit in seconds for collecting the status
STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
HEADERS = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
    ),
]


class StatusReader:
    """Lets any thread read the status. The status is collected on the event loop on which this
    object was created.
    """

    def __init__(self, read: Callable[[], Awaitable[Status]]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._until = 0.0  # time until which `_known` is reused
        self._known: Status | None = None

    def __call__(self) -> Status:
        """Return the status, which is at most FRESH_SECONDS old. Raises TimeoutError."""
        with self._lock:
            if self._known is None or time.monotonic() >= self._until:
                self._known = self._now()
                self._until = time.monotonic() + FRESH_SECONDS
            return self._known

    def _now(self) -> Status:
        async def read() -> Status:
            return await self._read()

        return from_thread(self._loop, read, LATE_SECONDS)


def add_status_pages(pages: Pages, read: Callable[[], Awaitable[Status]]) -> None:
    """Serve all status pages. Call this function on the event loop on which `read` is to run."""
    reader = StatusReader(read)

    def html(status: Status) -> str:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return page(status, version("tandem-serving"), now)

    def message(status: Status) -> str:
        encoded = encode_status(status, with_history=True)
        return MessageToJson(encoded, always_print_fields_with_no_presence=True)

    add_targets(pages)
    pages.add("/", _application(reader, html, "text/html; charset=utf-8"))
    pages.add("/status.json", _application(reader, message, "application/json"))


def add_targets(pages: Pages, cells: Callable[[], Sequence[str]] | None = None) -> None:
    """Serve the document by which Prometheus finds the metrics of all cells (`http_sd_configs`).
    `cells` is called in a thread, and returns the URLs of the cells. If `cells` raises
    TimeoutError, the request fails, and Prometheus keeps the cells that it already knows. By
    default, the document lists only the cell that serves it.
    """
    # only one request at a time calls `cells`, which may wait for a cell that hangs
    asking = threading.Lock()

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not asking.acquire(blocking=False):
            return _late(start_response)
        try:
            urls = [*map(urlsplit, cells() if cells else [application_uri(environ)])]
        except TimeoutError:
            return _late(start_response)
        finally:
            asking.release()
        found = [{"targets": [url.netloc], "labels": {"__scheme__": url.scheme}} for url in urls]
        start_response("200 OK", [("Content-Type", "application/json"), *HEADERS])
        return [json.dumps(found).encode()]

    pages.add("/targets", application)


def _late(start_response: StartResponse) -> Iterable[bytes]:
    start_response("503 Service Unavailable", [("Content-Type", "text/plain"), *HEADERS])
    return [b"the orchestrator does not answer\n"]


def _application(
    reader: StatusReader, shown: Callable[[Status], str], kind: str
) -> WSGIApplication:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            body = shown(reader())
        except TimeoutError:
            return _late(start_response)
        start_response("200 OK", [("Content-Type", kind), *HEADERS])
        return [body.encode()]

    return application
