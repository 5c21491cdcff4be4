"""Whether the orchestrator can serve: it needs a round worker and a verifier."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import grpc

from tandem.orchestrator.workers.pool import WorkerPool
from tandem.protos.transport.health import Health, is_serving

VERIFIER = "tandem.v1.VerifierService"
PAUSE_SECONDS = 0.25  # between two looks
ANSWER_SECONDS = 1.0  # in which a verifier answers; health is NOT_SERVING within 2 s


def reporting(
    health: Health, pool: WorkerPool, verifiers: Sequence[grpc.aio.Channel]
) -> tuple[Coroutine[Any, Any, None], ...]:
    """What reports to `health`, again and again."""
    return _report_workers(health, pool), _report_verifiers(health, verifiers)


async def _report_workers(health: Health, pool: WorkerPool) -> None:
    while True:
        health.report("workers", None if pool.connected else "no round worker is up")
        await asyncio.sleep(PAUSE_SECONDS)


async def _report_verifiers(health: Health, verifiers: Sequence[grpc.aio.Channel]) -> None:
    """Any verifier that serves is enough."""
    while True:
        answers = (is_serving(each, VERIFIER, ANSWER_SECONDS) for each in verifiers)
        serving = any(await asyncio.gather(*answers))
        health.report("verifiers", None if serving else "no verifier serves")
        await asyncio.sleep(PAUSE_SECONDS)
