"""Round workers without Ray: on the event loop of the front end itself."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.config import OrchestratorConfig
from orchestrator.workers import worker


class LocalSupervisor:
    """One worker that lives as long as its process."""

    count = 1

    def __init__(self, address: str, key: str) -> None:
        self.key = key
        self._address = address

    async def endpoint(self, index: int) -> str:
        """Where the worker serves."""
        return self._address


@asynccontextmanager
async def supervising(config: OrchestratorConfig) -> AsyncIterator[LocalSupervisor]:
    """A worker while the scope lasts."""
    key = secrets.token_hex(16)
    async with worker.serving("127.0.0.1", config.verifier, config.drafter, key) as address:
        yield LocalSupervisor(address, key)
