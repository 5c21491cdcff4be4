"""An orchestrator is ready while a verifier serves that it would use, and counts no other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry

from tandem import models
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.acceptance import Acceptance
from tandem.orchestrator.fleet.fleet_metrics import FleetMetrics
from tandem.orchestrator.fleet.membership import Members, Membership
from tandem.orchestrator.fleet.registration import Registry
from tandem.orchestrator.fleet.replicas import Replicas
from tandem.protos.service.tasks import background
from tandem.protos.types import ModelDescription
from tests.services.registering import MODEL
from tests.waiting import until


@dataclass
class Verifier:
    """One that reports this model, and whether it serves."""

    model: ModelDescription
    serves: bool = True

    async def serving(self, seconds: float) -> bool:
        return self.serves

    async def describe(self, seconds: float) -> ModelDescription:
        return self.model


def replicas(*verifiers: Verifier) -> tuple[Replicas, Membership]:
    """What an orchestrator that began with `MODEL` knows of them."""
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
        assert await replicas(*verifiers)[0].serving(1.0) == ready


async def test_verifiers_that_serve_nobody_are_not_counted_as_serving() -> None:
    """One hangs, one has another model."""
    found, membership = replicas(Verifier(MODEL), Verifier(MODEL, False), Verifier(OTHER))
    registry = CollectorRegistry()
    metrics = FleetMetrics(registry, membership, Acceptance())

    def count(state: str) -> float | None:
        labels = {"role": "verifier", "state": state}
        return registry.get_sample_value("tandem_replicas", labels)

    async with background(metrics.follow(found)):
        await until(lambda: count("serving") == 1)
    assert count("known") == 3
