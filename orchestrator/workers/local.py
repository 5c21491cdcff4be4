"""The round worker without Ray: on the event loop of the front end."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.registration import Access
from tandem.orchestrator.workers import worker
from tandem.protos.types import ModelDescription


class LocalSupervisor:
    """One worker that lives as long as its process."""

    count = 1
    host = "127.0.0.1"
    reserve: int | None = None

    def __init__(self, address: str, access: Access) -> None:
        self.access = access
        self._address = address

    async def endpoint(self, index: int) -> str:
        """The worker's address."""
        return self._address

    def restart(self, index: int) -> None:
        """It lives as long as its process."""


@asynccontextmanager
async def supervising(
    config: OrchestratorConfig, target: ModelDescription
) -> AsyncIterator[LocalSupervisor]:
    """A worker while the scope lasts."""
    access = Access(secrets.token_hex(16), config.tls)
    async with worker.serving(LocalSupervisor.host, access, target) as address:
        yield LocalSupervisor(address, access)
