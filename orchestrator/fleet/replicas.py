"""Drafters and verifiers: do their models fit together, and how are they doing?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import grpc
import structlog

from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.clients import DrafterClient, VerifierClient
from tandem.protos.errors import IncompatibleModels, TandemError, Unusable
from tandem.protos.fingerprint import fingerprint
from tandem.protos.transport import rpc
from tandem.protos.types import ModelDescription

STATUS_SECONDS = 2.0
DRAFTER_SECONDS = 20.0  # more than the verifier took

log = structlog.get_logger()


class ModelClient(Protocol):
    """Of a service with a model."""

    async def describe(self, seconds: float) -> ModelDescription:
        """The model; waits up to `seconds` for the service."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A service, its model unless it did not answer, and how long it took to answer."""

    address: str
    model: ModelDescription | None
    round_trip_seconds: float


class Replicas:
    """Verifiers, which serve the same model, and drafters."""

    def __init__(self, config: OrchestratorConfig) -> None:
        self._config = config
        self.fingerprint = fingerprint(config.tokenizer)
        self.verifier_channels: list[grpc.aio.Channel] = []
        self._verifiers: dict[str, VerifierClient] = {}
        self._drafters: dict[str, DrafterClient] = {}
        self._scope = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for address in self._config.verifiers:
            channel = await self._scope.enter_async_context(rpc.connect(address))
            self.verifier_channels.append(channel)
            self._verifiers[address] = VerifierClient(channel)
        for address in self._config.drafters:
            channel = await self._scope.enter_async_context(rpc.connect(address))
            self._drafters[address] = DrafterClient(channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._scope.aclose()

    async def check_models(self) -> ModelDescription:
        """Wait for a verifier and a drafter, and check that all tokenizers are the same; the
        target's description.

        Raises Unusable without a verifier, IncompatibleModels if tokenizers differ. Without a
        drafter it returns after a while: the verifier decodes by itself.
        """
        config = self._config
        target = await _first(self._verifiers, config.start_seconds)
        if target is None:
            raise Unusable(f"no verifier answers at {config.verifier}")
        _check_same(config.tokenizer, self.fingerprint, target)
        draft = await _first(self._drafters, min(DRAFTER_SECONDS, config.start_seconds))
        if draft is None:
            log.warning("no drafter answers; decoding without drafts", address=config.drafter)
        else:
            _check_same(draft.name, draft.tokenizer_fingerprint, target)
        return target

    async def status(self) -> tuple[list[ReplicaStatus], list[ReplicaStatus]]:
        """Those of verifiers and of drafters."""
        verifiers, drafters = await asyncio.gather(
            asyncio.gather(*(_status(*each) for each in self._verifiers.items())),
            asyncio.gather(*(_status(*each) for each in self._drafters.items())),
        )
        return verifiers, drafters


async def _first(clients: Mapping[str, ModelClient], seconds: float) -> ModelDescription | None:
    """The description by the first that answers; None if none does."""
    asking = [asyncio.create_task(client.describe(seconds)) for client in clients.values()]
    try:
        for answer in asyncio.as_completed(asking):
            with suppress(TandemError):
                return await answer
        return None
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def _status(address: str, client: ModelClient) -> ReplicaStatus:
    began = time.monotonic()
    try:
        model = await client.describe(STATUS_SECONDS)
    except TandemError:
        return ReplicaStatus(address, None, 0.0)
    return ReplicaStatus(address, model, time.monotonic() - began)


def _check_same(name: Path | str, tokenizer_fingerprint: str, target: ModelDescription) -> None:
    if tokenizer_fingerprint != target.tokenizer_fingerprint:
        prints = f"{tokenizer_fingerprint}, {target.tokenizer_fingerprint}"
        raise IncompatibleModels(f"the tokenizers of {name} and {target.name} differ ({prints})")
