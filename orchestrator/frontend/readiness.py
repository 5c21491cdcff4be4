"""Whether the orchestrator can serve: it needs a round worker and a verifier."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tandem.orchestrator.fleet.replicas import Replicas
from tandem.orchestrator.workers.pool import WorkerPool
from tandem.protos.transport.health import Health

PAUSE_SECONDS = 0.25  # between two looks
ANSWER_SECONDS = 1.0  # in which a verifier answers; health is NOT_SERVING within 2 s


def reporting(
    health: Health, pool: WorkerPool, replicas: Replicas
) -> tuple[Coroutine[Any, Any, None], ...]:
    """What reports to `health`, again and again."""
    return _report_workers(health, pool), _report_verifiers(health, replicas)


async def _report_workers(health: Health, pool: WorkerPool) -> None:
    while True:
        health.report("workers", None if pool.connected else "no round worker is up")
        await asyncio.sleep(PAUSE_SECONDS)


async def _report_verifiers(health: Health, replicas: Replicas) -> None:
    """Any verifier that serves is enough."""
    while True:
        serving = await replicas.serving(ANSWER_SECONDS)
        health.report("verifiers", None if serving else "no verifier serves")
        await asyncio.sleep(PAUSE_SECONDS)
