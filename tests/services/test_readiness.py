"""An orchestrator is ready if a verifier that it would use serves; other verifiers do not count."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem import models
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet import replicas as module
from tandem.orchestrator.fleet.fleet_metrics import FleetMetrics
from tandem.orchestrator.fleet.membership import Acceptance, Members, Membership
from tandem.orchestrator.fleet.registration import Registry
from tandem.orchestrator.fleet.replicas import ProbeResult, Replicas
from tandem.protos.errors import Unusable
from tandem.protos.service.tasks import background
from tandem.protos.transport import rpc
from tandem.protos.transport.health import Health
from tandem.protos.types import ModelDescription
from tandem.verifier_service import service as verifier_service
from tests.served import Pair
from tests.services.registering import MODEL
from tests.waiting import until


@dataclass
class Verifier:
    """A verifier that reports this model, and whether it serves."""

    model: ModelDescription
    serves: bool = True

    async def serving(self, seconds: float) -> bool:
        return self.serves

    async def describe(self, seconds: float) -> ModelDescription:
        return self.model


def replicas(*verifiers: Verifier) -> tuple[Replicas, Membership]:
    """Return what an orchestrator that began with `MODEL` knows about these verifiers."""
    names = tuple(str(number) for number in range(len(verifiers)))
    membership = Membership(Members(names, ()))
    config = OrchestratorConfig(verifier="v:1", tokenizer=models.TARGET)
    found: Any = Replicas(config, membership, Registry(str, str))
    found.model_identity = MODEL.identity
    found.verifiers = dict(zip(names, verifiers, strict=True))
    return found, membership


OTHER = replace(MODEL, weights_fingerprint="other weights")


async def test_a_verifier_with_another_model_makes_nobody_ready() -> None:
    for verifiers, ready in (
        ((Verifier(MODEL),), True),
        ((Verifier(OTHER), Verifier(MODEL)), True),
        ((Verifier(OTHER),), False),
        ((Verifier(MODEL, False), Verifier(OTHER)), False),
        ((), False),
    ):
        assert (await replicas(*verifiers)[0].probe_verifiers(1.0)).serving == ready


async def test_a_model_is_replaced_when_only_another_one_is_there_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PROBE_PAUSE_SECONDS", 0.0)
    ours, other = Verifier(MODEL), Verifier(OTHER)
    stranger = Verifier(replace(OTHER, tokenizer_fingerprint="other tokens"))
    for verifiers, replaced in (
        ((ours,), False),
        ((replace(ours, serves=False), other), False),
        ((stranger,), False),
        ((), False),
        ((other, other), True),
    ):
        assert (await replicas(*verifiers)[0].probe_verifiers(1.0)).replaced == replaced
    found, _ = replicas(ours)
    probes = 0

    async def probe_verifiers(seconds: float) -> ProbeResult:
        nonlocal probes
        probes += 1
        return ProbeResult(False, probes != module.MAX_REPLACED_PROBES)

    found.probe_verifiers = probe_verifiers  # type: ignore[method-assign]
    with pytest.raises(Unusable, match="another model than at the start"):
        await found.report_verifiers(Health())
    assert probes == 2 * module.MAX_REPLACED_PROBES


async def test_an_orchestrator_whose_verifier_was_replaced_ends(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE_PAUSE_SECONDS", 0.0)
    port = rpc.free_port("127.0.0.1")

    def verifier(model: Path) -> AbstractAsyncContextManager[str]:
        config = ModelServiceConfig(model=model, port=port, threads=1)
        return verifier_service.serving(config, CollectorRegistry())

    config = OrchestratorConfig(
        verifier=f"127.0.0.1:{port}", tokenizer=embedded.target, port=0, ray=False
    )
    with pytest.raises(Unusable, match="another model than at the start"):
        async with AsyncExitStack() as scope:
            async with verifier(embedded.target):
                await scope.enter_async_context(server.serving(config, CollectorRegistry()))
            async with verifier(embedded.draft):
                await asyncio.Event().wait()


async def test_verifiers_that_serve_nobody_are_not_counted_as_serving() -> None:
    """One verifier hangs, and one has another model."""
    found, membership = replicas(Verifier(MODEL), Verifier(MODEL, False), Verifier(OTHER))
    registry = CollectorRegistry()
    metrics = FleetMetrics(registry, membership, Acceptance(), {"verifier": 1, "drafter": 0})

    def count(state: str) -> float | None:
        labels = {"role": "verifier", "state": state}
        return registry.get_sample_value("tandem_replicas", labels)

    async with background(metrics.follow(found)):
        await until(lambda: count("serving") == 1)
    assert count("known") == 3
