"""Whether the orchestrator can serve: it needs a verifier."""

from __future__ import annotations

import asyncio

from tandem.orchestrator.fleet.replicas import Replicas
from tandem.protos.transport.health import Health

PAUSE_SECONDS = 0.25  # between two looks
ANSWER_SECONDS = 1.0  # in which a verifier answers; health is NOT_SERVING within 2 s


async def report_verifiers(health: Health, replicas: Replicas) -> None:
    """Any verifier that serves is enough; until cancelled."""
    while True:
        serving = await replicas.serving(ANSWER_SECONDS)
        health.report("verifiers", None if serving else "no verifier serves")
        await asyncio.sleep(PAUSE_SECONDS)
