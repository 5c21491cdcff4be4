"""A whole Tandem system with TLS on every hop, in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from tandem import AsyncClient, models
from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.verifier_service import service as verifier_service
from tests.certificates import settings


@dataclass(frozen=True)
class Protected:
    """The addresses of the services, and the certificates."""

    folder: Path
    verifier: str
    drafter: str
    orchestrator: str
    registries: tuple[CollectorRegistry, ...] = ()

    def client(self, name: str = "client", **more: Any) -> AsyncClient:
        """Return a client with a certificate."""
        given = settings(self.folder, name) | more
        return AsyncClient(self.orchestrator, **given)

    def with_token(self, token: str, address: str = "") -> AsyncClient:
        """Return a client with a token."""
        ca = self.folder / "ca.pem"
        return AsyncClient(address or self.orchestrator, tls_ca=ca, token=token or None)


@asynccontextmanager
async def protected(folder: Path, **options: Any) -> AsyncIterator[Protected]:
    """Run the embedded pair; `options` are the orchestrator's."""
    async with AsyncExitStack() as scope:
        addresses, registries = [], tuple(CollectorRegistry() for _ in range(3))
        for role, module, model in (
            ("verifier", verifier_service, models.TARGET),
            ("drafter", drafter_service, models.DRAFT),
        ):
            config = ModelServiceConfig(model=model, threads=1, **settings(folder, role))
            serving = module.serving(config, registries[len(addresses)])
            addresses.append(await scope.enter_async_context(serving))
        front = OrchestratorConfig(
            verifier=addresses[0],
            drafter=addresses[1],
            tokenizer=models.TARGET,
            port=0,
            ray=False,
            **settings(folder, "orchestrator"),
            **options,
        )
        place = await scope.enter_async_context(server.serving(front, registries[2]))
        yield Protected(folder, *addresses, place, registries)
