"""Whether the orchestrator can serve: it needs a verifier, of the model that it started with."""

from __future__ import annotations

import asyncio

from tandem.orchestrator.fleet.replicas import Replicas
from tandem.protos.errors import Unusable
from tandem.protos.transport.health import Health

PAUSE_SECONDS = 0.25  # between two looks
ANSWER_SECONDS = 1.0  # in which a verifier answers; health is NOT_SERVING within 2 s
REPLACED = 20  # looks in a row at which only another model is there: five seconds


async def report_verifiers(health: Health, replicas: Replicas) -> None:
    """Any verifier that serves is enough; until cancelled."""
    while True:
        serving = await replicas.serving(ANSWER_SECONDS)
        health.report("verifiers", None if serving else "no verifier serves")
        await asyncio.sleep(PAUSE_SECONDS)


async def until_replaced(replicas: Replicas) -> None:
    """Raise Unusable once all verifiers have another model: no request could be served any more.
    Whoever started the orchestrator starts it again, with that model.
    """
    looks = 0
    while looks < REPLACED:
        await asyncio.sleep(PAUSE_SECONDS)
        looks = looks + 1 if await replicas.replaced(ANSWER_SECONDS) else 0
    raise Unusable("all verifiers serve another model than at the start; start again to serve it")
