"""Prometheus metrics of the replicas that the front end knows.

Every replica is asked periodically what it serves. Replicas that have left are not exported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandem.orchestrator.fleet.membership import Acceptance, Membership
from tandem.orchestrator.fleet.replicas import Replicas, ReplicaStatus
from tandem.protos.wire.registration import registered_name

PAUSE_SECONDS = 1.0  # seconds between two status queries to all replicas
MAX_SERIES = 64  # maximum number of replicas per role that get their own time series


class FleetMetrics(Collector):
    """Exports metrics from the newest status that each replica has reported. `fewest` is the
    minimum number of replicas that should serve, by role; this minimum cannot be derived from the
    known replicas, because lost pods disappear from DNS.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        membership: Membership,
        acceptance: Acceptance,
        fewest: Mapping[str, int],
    ) -> None:
        self._membership = membership
        self._acceptance = acceptance
        self._fewest = fewest
        self._seen: dict[str, list[ReplicaStatus]] = {"verifier": [], "drafter": []}
        registry.register(self)

    async def follow(self, replicas: Replicas) -> None:
        """Query the status of all replicas periodically, until cancelled."""
        while True:
            verifiers, drafters = await replicas.status()
            self._seen = {"verifier": verifiers, "drafter": drafters}
            await asyncio.sleep(PAUSE_SECONDS)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics. The exporter calls this method."""
        members, seen = self._membership.now, self._seen
        known = {"verifier": members.verifiers, "drafter": members.drafters}
        counts = GaugeMetricFamily(
            "tandem_replicas",
            "Number of replicas that are known, serving, or expected to serve",
            labels=["role", "state"],
        )
        trips = GaugeMetricFamily(
            "tandem_replica_round_trip_seconds",
            "Seconds from a status query to a replica until its answer",
            labels=["role", "replica"],
        )
        verified = CounterMetricFamily(
            "tandem_replica_draft_tokens",
            "Draft tokens of a drafter that were verified",
            labels=["replica"],
        )
        accepted = CounterMetricFamily(
            "tandem_replica_accepted_tokens",
            "Draft tokens of a drafter that were accepted",
            labels=["replica"],
        )
        for address in members.drafters[:MAX_SERIES]:
            for family, count in zip(
                (verified, accepted), self._acceptance.of(address), strict=True
            ):
                family.add_metric([address], count)
        for role, replies in seen.items():
            counts.add_metric([role, "known"], len(known[role]))
            expected = max(len(known[role]), self._fewest[role])
            counts.add_metric([role, "expected"], expected)
            counts.add_metric([role, "serving"], sum(not each.problem for each in replies))
            for each in [each for each in replies if each.model][:MAX_SERIES]:
                trips.add_metric([role, each.address], each.round_trip_seconds)
        registered = sum(bool(registered_name(each)) for each in members.drafters)
        return (
            counts,
            trips,
            verified,
            accepted,
            GaugeMetricFamily(
                "tandem_registered_drafters", "Drafters that have registered", registered
            ),
        )
