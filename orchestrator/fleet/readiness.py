"""Reports whether the orchestrator can serve: it needs a verifier of the model it started with."""

from __future__ import annotations

import asyncio

from tandem.orchestrator.fleet.replicas import Replicas
from tandem.protos.errors import Unusable
from tandem.protos.transport.health import Health

PAUSE_SECONDS = 0.25  # between two probes of the verifiers
ANSWER_SECONDS = 1.0  # for a verifier to answer; so health is NOT_SERVING within 2 s
MAX_REPLACED_PROBES = 20  # probes in a row that find only another model: five seconds


async def report_verifiers(health: Health, replicas: Replicas) -> None:
    """Report whether any verifier serves; one is enough. Raises Unusable once all verifiers have
    another model, because no request could be served any more. Whoever started the orchestrator
    is to start it again, with that model.
    """
    probes = 0
    while probes < MAX_REPLACED_PROBES:
        seen = await replicas.probe_verifiers(ANSWER_SECONDS)
        health.report("verifiers", None if seen.serving else "no verifier serves")
        probes = probes + 1 if seen.replaced else 0
        await asyncio.sleep(PAUSE_SECONDS)
    raise Unusable("all verifiers serve another model than at the start; start again to serve it")
