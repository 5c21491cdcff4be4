"""The network policies of each overlay, evaluated as a cluster evaluates them at both ends:
required connections are allowed, and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import pytest

from tests.manifests import KUBERAY, OVERLAYS, objects, ray_pods

NAMESPACE, NAME = "tandem", "kubernetes.io/metadata.name"
RAY = {"ray.io/node-type", "ray.io/cluster", "app.kubernetes.io/created-by"}
GRPC, HTTP, METRICS, DNS, OTLP = "grpc", "http", "metrics", 53, 4317
VERIFIER, DRAFTER, CLIENT_API, DASHBOARD = 50052, 50053, 50051, 8265
PROBED = (CLIENT_API, VERIFIER, DRAFTER, 8000, 9090, DNS, OTLP, DASHBOARD, 6379, 6380, 22)


@dataclass(frozen=True, slots=True)
class End:
    """A pod, or a peer outside the namespace: its labels, its namespace's labels, and its ports by
    name.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: Mapping[str, str] = field(default_factory=lambda: {NAME: NAMESPACE})
    ports: Mapping[str, int] = field(default_factory=dict)
    address: str = ""  # set for an end outside the cluster

    @property
    def ours(self) -> bool:
        """Return whether the end is in the overlay."""
        return self.namespace.get(NAME) == NAMESPACE

    def number(self, port: Mapping[str, Any]) -> int:
        """Return the number of a port that a rule gives by number or by name; 0 if the name is
        unknown.
        """
        known = port["port"]
        return known if isinstance(known, int) else self.ports.get(known, 0)


PEERS = (
    End("prometheus", namespace={NAME: "monitoring"}),
    End("client", namespace={NAME: "apps", "tandem-clients": "allowed"}),
    End("stranger", namespace={NAME: "apps"}),
    End("dns", namespace={NAME: "kube-system"}),
    End("kuberay", namespace={NAME: "kuberay-system"}),
    End("internet", namespace={}, address="203.0.113.7"),
)


def pods(overlay: str) -> list[End]:
    """Return the pods of an overlay, each once."""
    found = [
        (each["metadata"]["name"], each["spec"]["template"])
        for each in objects(overlay, "Deployment", "StatefulSet")
    ]
    if overlay == KUBERAY:
        found += [(name.replace("ray-", ""), pod) for name, pod in ray_pods().items()]
    ends = []
    for name, template in found:
        (container,) = template["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        ends.append(End(name, template["metadata"]["labels"], ports=ports))
    return ends


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a selector selects these labels by Kubernetes' rules."""
    exact = selector.get("matchLabels", {}).items() <= labels.items()
    return exact and all(_holds(each, labels) for each in selector.get("matchExpressions", ()))


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(expression["key"])
    return {
        "In": value in expression.get("values", ()),
        "Exists": value is not None,
    }[expression["operator"]]


def is_peer(peer: Mapping[str, Any], end: End) -> bool:
    """Return whether a network policy's rule names this end of a connection as a peer."""
    if "ipBlock" in peer:
        return bool(end.address) and peer["ipBlock"]["cidr"] == "0.0.0.0/0"
    if end.address:
        return False
    if "namespaceSelector" in peer:
        if not matches(peer["namespaceSelector"], end.namespace):
            return False
    elif not end.ours:
        return False
    return matches(peer.get("podSelector", {}), end.labels)


@cache
def policies(overlay: str) -> list[dict[str, Any]]:
    """Return the policies of an overlay."""
    return [each["spec"] for each in objects(overlay, "NetworkPolicy")]


def allowed(overlay: str, caller: End, callee: End, port: int, incoming: bool) -> bool:
    """Return whether the policies for the callee (`incoming`) or for the caller allow the
    connection.
    """
    own, other = (callee, caller) if incoming else (caller, callee)
    kind, way, key = ("Ingress", "ingress", "from") if incoming else ("Egress", "egress", "to")
    selecting = [
        spec
        for spec in policies(overlay)
        if matches(spec["podSelector"], own.labels) and kind in spec["policyTypes"]
    ]
    rules = [rule for spec in selecting for rule in spec.get(way) or ()]
    return not selecting or any(
        (key not in rule or any(is_peer(peer, other) for peer in rule[key]))
        and ("ports" not in rule or port in map(callee.number, rule["ports"]))
        for rule in rules
    )


def reached(overlay: str) -> Iterator[tuple[str, str, int]]:
    """Return all (caller, callee, port) that both ends allow."""
    ends = [*pods(overlay), *PEERS]
    for caller, callee, port in product(ends, ends, PROBED):
        if caller is callee or not (caller.ours or callee.ours):
            continue
        out = not caller.ours or allowed(overlay, caller, callee, port, False)
        into = not callee.ours or allowed(overlay, caller, callee, port, True)
        if out and into:
            yield caller.name, callee.name, port


def wanted(overlay: str) -> set[tuple[str, str, int]]:
    """Return the connections that settings, Prometheus, traces, name lookups and Ray need."""
    names = {end.name for end in pods(overlay)}
    cells = names & {"orchestrator", "worker"}
    models = {("verifier", VERIFIER), ("drafter", DRAFTER)}
    found = {(cell, name, port) for cell in cells for name, port in models if name in names}
    found |= {("prometheus", name, 9090) for name in names - {"head"}}
    found |= {(name, "prometheus", OTLP) for name in names}
    found |= {("client", cell, port) for cell in cells for port in (CLIENT_API, 8000)}
    found |= {(name, peer.name, DNS) for name in names for peer in PEERS}
    if overlay == "public":
        found |= {("internet", cell, port) for cell in cells for port in (CLIENT_API, 8000)}
    if overlay == KUBERAY:
        found.add(("kuberay", "head", DASHBOARD))
    if overlay == "edge-drafter":
        found |= {("drafter", peer.name, CLIENT_API) for peer in PEERS}
    return found


@pytest.mark.parametrize("overlay", (*OVERLAYS, KUBERAY))
def test_both_ends_of_each_needed_connection_allow_it_and_nothing_else(overlay: str) -> None:
    found, needed = set(reached(overlay)), wanted(overlay)
    assert needed - found == set(), "is not let through"
    more = found - needed
    if overlay == KUBERAY:
        ray = {"head", "worker"}
        more = {each for each in more if not set(each[:2]) <= ray}
    assert more == set(), "is let through"


def test_pods_of_kuberay_keep_the_labels_that_its_own_services_select() -> None:
    for pod in ray_pods().values():
        assert not {"app.kubernetes.io/name", *RAY} & pod["metadata"]["labels"].keys()


@pytest.mark.parametrize("overlay", (*OVERLAYS, KUBERAY))
def test_every_service_selects_pods_that_have_its_ports(overlay: str) -> None:
    ends = pods(overlay)
    if overlay == KUBERAY:
        for end in ends:
            if end.name in ("head", "worker"):
                end.labels["ray.io/node-type"] = end.name  # type: ignore[index]  # KubeRay does
    for service in objects(overlay, "Service"):
        spec = service["spec"]
        selected = [end for end in ends if spec["selector"].items() <= end.labels.items()]
        assert selected, service["metadata"]["name"]
        for end in selected:
            assert {port["targetPort"] for port in spec["ports"]} <= end.ports.keys()
