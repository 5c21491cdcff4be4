"""The drafter and the verifier: do they fit together, and how are they doing?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

import grpc
import structlog

from orchestrator.config import OrchestratorConfig
from orchestrator.fleet.clients import DrafterClient, VerifierClient
from protos.errors import IncompatibleModels, TandemError, Unusable
from protos.fingerprint import fingerprint
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.types import ModelDescription

STATUS_SECONDS = 2.0
DRAFTER_SECONDS = 20.0  # more than the verifier took

log = structlog.get_logger()


class Replicas:
    """One verifier and one drafter."""

    def __init__(
        self, config: OrchestratorConfig, verifier: grpc.aio.Channel, drafter: grpc.aio.Channel
    ) -> None:
        self._config = config
        self._fingerprint = fingerprint(config.tokenizer)
        self._verifier, self._drafter = VerifierClient(verifier), DrafterClient(drafter)

    async def introduce(self) -> ModelDescription:
        """Wait for both and check that they and our tokenizer speak the same tokens; the target's
        description.

        Raises Unusable without a verifier, IncompatibleModels if they do not fit. Without a drafter
        it goes on after a while: the verifier decodes by itself.
        """
        try:
            target = await self._verifier.describe(self._config.start_seconds)
        except TandemError as error:
            raise Unusable(f"no verifier answers at {self._config.verifier}") from error
        _same(self._config.tokenizer, self._fingerprint, target.name, target.tokenizer_fingerprint)
        try:
            draft = await self._drafter.describe(min(DRAFTER_SECONDS, self._config.start_seconds))
        except TandemError:
            log.warning("no drafter answers; decoding without drafts", address=self._config.drafter)
        else:
            _same(
                draft.name, draft.tokenizer_fingerprint, target.name, target.tokenizer_fingerprint
            )
        return target

    async def status(self, running: int, waiting: int) -> api.GetStatusResponse:
        """What is served and how it is doing."""
        (target, verifier), (_, drafter) = await asyncio.gather(
            _look(self._config.verifier, self._verifier.describe),
            _look(self._config.drafter, self._drafter.describe),
        )
        model = api.ModelStatus(
            name=target.name if target else "",
            tokenizer_fingerprint=self._fingerprint,
            verifiers=[verifier],
            drafters=[drafter],
            requests_running=running,
            requests_waiting=waiting,
        )
        return api.GetStatusResponse(version=version("tandem-serving"), models=[model])


async def _look(
    address: str, describe: Callable[[float], Awaitable[ModelDescription]]
) -> tuple[ModelDescription | None, api.ReplicaStatus]:
    began = time.monotonic()
    try:
        model = await describe(STATUS_SECONDS)
    except TandemError:
        return None, api.ReplicaStatus(address=address, serving=False)
    return model, api.ReplicaStatus(
        address=address,
        serving=True,
        model=model.name,
        device=model.device,
        dtype=model.dtype,
        sessions=model.sessions,
        kv_cache_usage=model.cache_usage,
        exactness=model.exactness,
        kernels=model.kernels,
        round_trip_seconds=time.monotonic() - began,
    )


def _same(left: Path | str, left_print: str, right: Path | str, right_print: str) -> None:
    if left_print != right_print:
        raise IncompatibleModels(
            f"the tokenizers of {left} and {right} differ ({left_print}, {right_print})"
        )
