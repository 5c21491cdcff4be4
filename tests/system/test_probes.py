"""Every service serves the pages for probes, on its metrics port, as long as its port is open."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from prometheus_client import CollectorRegistry

from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.service.pages import Pages
from tandem.protos.service.probes import ALIVE, READY
from tandem.verifier_service import service as verifier_service
from tests.served import Pair
from tests.waiting import until


def asked(pages: Pages, path: str) -> str:
    """Return the status of a page, as the page server computes it."""
    found: list[str] = []

    def start(status: str, *_: Any) -> None:
        found.append(status)

    request = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "SERVER_NAME": "0.0.0.0"}
    list(pages(request, start))
    return found[0][:3]


async def test_each_service_is_probed_at_its_pages(embedded: Pair) -> None:
    async def said(pages: Pages, path: str) -> str:
        return await asyncio.to_thread(asked, pages, path)

    verifier, drafter, front = (Pages(CollectorRegistry()) for _ in range(3))
    async with AsyncExitStack() as scope:
        async with AsyncExitStack() as models:
            addresses = {}
            for role, module, folder, pages in (
                ("verifier", verifier_service, embedded.target, verifier),
                ("drafter", drafter_service, embedded.draft, drafter),
            ):
                assert await said(pages, ALIVE) == "404", "it has no port yet"
                serving = module.serving(
                    ModelServiceConfig(model=folder, threads=1), CollectorRegistry(), pages=pages
                )
                addresses[role] = await models.enter_async_context(serving)
            config = OrchestratorConfig(tokenizer=embedded.target, port=0, ray=False, **addresses)
            await scope.enter_async_context(
                server.serving(config, CollectorRegistry(), pages=front)
            )
            for pages in (verifier, drafter, front):
                assert await said(pages, ALIVE) == "200"

                async def ready(pages: Pages = pages) -> bool:
                    return await said(pages, READY) == "200"

                await until(ready)

        async def lost() -> bool:
            return await said(front, READY) == "503"

        await until(lost)
        assert await said(front, ALIVE) == "200", "no verifier is no reason to restart it"
        for pages in (verifier, drafter):
            assert await said(pages, READY) == "503"
