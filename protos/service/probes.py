"""Serves the pages `/healthz` and `/readyz` for liveness and readiness probes. A service's event
loop answers these pages from the moment when the service's port is open. Before that, the metrics
port reports these pages as not found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING

from tandem.protos.service.pages import PLAIN, Pages
from tandem.protos.service.tasks import from_thread

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ALIVE, READY = "/healthz", "/readyz"
ANSWER_SECONDS = 5.0  # the event loop must answer in this time; probes should wait longer


def add_probes(pages: Pages, problems: Callable[[], Sequence[str]]) -> None:
    """Serve the pages for liveness and readiness probes. The service is alive while the event loop
    answers, and ready if there are no `problems`. These pages require no client certificate,
    because the kubelet has none. This function must be called on the service's event loop.
    """
    loop = asyncio.get_running_loop()

    async def none() -> Sequence[str]:
        return ()

    async def now() -> Sequence[str]:
        return problems()

    def page(ask: Callable[[], Coroutine[None, None, Sequence[str]]]) -> WSGIApplication:
        def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            try:
                found = from_thread(loop, ask, ANSWER_SECONDS)
            except TimeoutError:
                found = ("the event loop does not answer",)
            start_response("503 Service Unavailable" if found else "200 OK", [PLAIN])
            return [f"{'; '.join(found) or 'ok'}\n".encode()]

        return application

    for path, ask in ((ALIVE, none), (READY, now)):
        pages.add(path, page(ask), anybody=True)
