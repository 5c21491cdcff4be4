"""The manifest for KubeRay: pods are locked down, and cells accept their settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.service.probes import READY
from tests.manifests import (
    KUBERAY,
    assert_reaches_its_services,
    objects,
    ray_pods,
    settings_of,
)

# The schema is KubeRay 1.5's, limited to the fields that are used here.
SERVICE = {
    *("excludeHeadPodFromServeSvc", "rayClusterConfig", "rayClusterDeletionDelaySeconds"),
    *("serveConfigV2", "serveService"),
}
CLUSTER = {"authOptions", "headGroupSpec", "rayVersion", "workerGroupSpecs"}
HEAD = {"rayStartParams", "template"}
WORKERS = HEAD | {"groupName", "maxReplicas", "minReplicas", "replicas"}


def test_the_ray_service_has_fields_of_kuberay_and_ray_is_started_with_texts() -> None:
    (service,) = objects(KUBERAY, "RayService")
    assert service["apiVersion"] == "ray.io/v1"
    cluster = service["spec"]["rayClusterConfig"]
    head, workers = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert (service["spec"].keys(), cluster.keys(), head.keys()) == (SERVICE, CLUSTER, HEAD)
    assert cluster["authOptions"] == {"mode": "token"}
    for group in workers:
        assert group.keys() == WORKERS
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (head, *workers):
        assert group["template"].keys() == {"metadata", "spec"}
        assert {type(value) for value in group["rayStartParams"].values()} == {str}


def test_pods_of_ray_are_locked_down() -> None:
    for each in ray_pods().values():
        (container,) = each["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert each["spec"]["securityContext"]["runAsNonRoot"]
        assert {"livenessProbe", "readinessProbe"} <= container.keys(), "KubeRay's own need wget"


def test_cells_accept_their_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files,) = [
        each["data"]
        for each in objects(KUBERAY, "ConfigMap")
        if each["metadata"]["name"] == "tandem-orchestrator"
    ]
    config = settings_of("orchestrator", files["tandem.yaml"], {}, monkeypatch, tmp_path)
    assert isinstance(config, OrchestratorConfig) and config.tls
    (container,) = ray_pods()["ray-worker"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        "serve-grpc": config.port,
        "http": config.http_port,
        "metrics": config.metrics_port,
    }
    assert container["readinessProbe"]["httpGet"] == {"path": READY, "port": "metrics"}
    assert not config.metrics_tls
    assert_reaches_its_services(KUBERAY, config)


def test_http_clients_and_prometheus_find_cells_at_the_ports_that_they_have() -> None:
    """KubeRay adds the label of the node's type; the head node has neither port."""
    (http,) = [each for each in objects(KUBERAY, "Service") if each["metadata"]["name"] == "tandem"]
    (monitor,) = [
        each
        for each in objects(KUBERAY, "PodMonitor")
        if each["metadata"]["name"] == "orchestrator"
    ]
    (port,), (endpoint,) = http["spec"]["ports"], monitor["spec"]["podMetricsEndpoints"]
    pods, wanted = ray_pods(), {port["targetPort"], endpoint["port"]}
    for name, found in (("ray-worker", wanted), ("ray-head", set())):
        labels = pods[name]["metadata"]["labels"]
        (container,) = pods[name]["spec"]["containers"]
        assert {each["name"] for each in container["ports"]} & wanted == found
        selected = monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert selected == bool(found)
    labels = pods["ray-worker"]["metadata"]["labels"] | {"ray.io/node-type": "worker"}
    assert http["spec"]["selector"].items() <= labels.items()
