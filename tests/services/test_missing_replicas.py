"""A replica whose address leaves DNS is forgotten, but still counts as missing."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem import models
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet import discovery, fleet_metrics
from tandem.orchestrator.fleet.discovery import Discovery
from tandem.orchestrator.fleet.fleet_metrics import FleetMetrics
from tandem.orchestrator.fleet.membership import Acceptance, Membership
from tandem.orchestrator.fleet.replicas import ReplicaStatus
from tandem.protos.service.tasks import background
from tests.services.registering import MODEL
from tests.waiting import until


class Answering:
    """A health check by which every known verifier serves and no drafter does."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def status(self) -> tuple[list[ReplicaStatus], list[ReplicaStatus]]:
        """Return the status in the way that `Replicas` reads it."""
        return [ReplicaStatus(each, MODEL, 0.001) for each in self._membership.now.verifiers], []


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the fake DNS records of names, which are looked up often."""
    addresses = ["10.0.0.1", "10.0.0.2"]

    def ask(host: str, port: int, **options: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, 0, 0, "", (each, port)) for each in addresses]

    monkeypatch.setattr(discovery.socket, "getaddrinfo", ask)
    monkeypatch.setattr(discovery, "LOOKUP_SECONDS", 0.01)
    monkeypatch.setattr(fleet_metrics, "PAUSE_SECONDS", 0.01)
    return addresses


@pytest.mark.parametrize(("given", "missing"), [({"expected_verifiers": 2}, 1), ({}, 0)])
async def test_a_verifier_that_leaves_dns_is_missed_where_it_is_expected(
    names: list[str], given: dict[str, int], missing: int
) -> None:
    config = OrchestratorConfig(verifier="dns:///verifier:1", tokenizer=models.TARGET, **given)
    registry = CollectorRegistry()

    def count(state: str) -> float:
        labels = {"role": "verifier", "state": state}
        return registry.get_sample_value("tandem_replicas", labels) or 0.0

    async with Discovery(config.verifiers, config.drafters).running() as membership:
        metrics = FleetMetrics(registry, membership, Acceptance(), config.expected)
        replicas: Any = Answering(membership)
        async with background(metrics.follow(replicas)):
            await until(lambda: count("serving") == 2)
            assert count("expected") == count("known") == 2
            names.pop()
            await until(lambda: count("serving") == 1 and count("known") == 1)
            assert count("expected") - count("serving") == missing


def test_of_each_address_or_name_one_is_expected_unless_it_is_said() -> None:
    def expected(**given: Any) -> dict[str, int]:
        return OrchestratorConfig(tokenizer=models.TARGET, **given).expected

    assert expected(verifier="dns:///v:1") == {"verifier": 1, "drafter": 0}
    sources = {"verifier": "a:1,b:1", "drafter": "dns:///d:1,c:1"}
    assert expected(**sources) == {"verifier": 2, "drafter": 2}
    said = {"expected_verifiers": 3, "expected_drafters": 0}
    assert expected(**sources, **said) == {"verifier": 3, "drafter": 0}


async def test_a_role_is_missed_when_nothing_of_it_was_ever_known() -> None:
    """The role's name has never been in DNS."""
    registry = CollectorRegistry()
    FleetMetrics(registry, Membership(), Acceptance(), {"verifier": 1, "drafter": 1})
    for role in ("verifier", "drafter"):
        for state, count in (("expected", 1), ("serving", 0), ("known", 0)):
            labels = {"role": role, "state": state}
            assert registry.get_sample_value("tandem_replicas", labels) == count
