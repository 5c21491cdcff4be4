"""The manifest for KubeRay: pods that fit Kubernetes' schema and are locked down, cells that accept
their settings.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from tandem.orchestrator.config import OrchestratorConfig
from tests.kuberay_schema import RAY_SERVICE
from tests.manifests import (
    KUBERAY,
    assert_reaches_its_services,
    objects,
    program,
    ray_pods,
    settings_of,
)


def test_the_ray_service_fits_the_schema_of_kuberay() -> None:
    (service,) = objects(KUBERAY, "RayService")
    jsonschema.validate(service, RAY_SERVICE)
    service["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    with pytest.raises(jsonschema.ValidationError, match="0 is not of type 'string'"):
        jsonschema.validate(service, RAY_SERVICE)


def test_what_kuberay_makes_fits_the_schema_of_kubernetes(tmp_path: Path) -> None:
    file = tmp_path / "made.yaml"
    (service,) = objects(KUBERAY, "RayService")
    serve = {"apiVersion": "v1", "kind": "Service"} | service["spec"]["serveService"]
    others = objects(KUBERAY, "ConfigMap", "NetworkPolicy", "Service")
    made = [*ray_pods().values(), serve, *others]
    file.write_text(yaml.safe_dump_all(made), encoding="utf-8")
    command = [program("kubernetes-validate"), "--strict", "--quiet", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


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
    assert_reaches_its_services(KUBERAY, config)


def test_http_clients_and_prometheus_find_cells_at_the_ports_that_they_have() -> None:
    """KubeRay adds the label of the node's type; the head has neither port."""
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
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    labels = pods["ray-worker"]["metadata"]["labels"] | {"ray.io/node-type": "worker"}
    assert http["spec"]["selector"].items() <= labels.items()


@pytest.mark.filterwarnings("ignore:The `metrics_interval_s` field:DeprecationWarning")
def test_the_serve_config_is_one_of_cells() -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="needs the extra [cells]")
    cells = pytest.importorskip("tandem.orchestrator.cells", reason="needs the extra [cells]")
    (service,) = objects(KUBERAY, "RayService")
    content = yaml.safe_load(service["spec"]["serveConfigV2"])
    (application,) = schema.ServeDeploySchema.model_validate(content).applications
    assert application.import_path == f"{cells.__name__}:{cells.app.__name__}"
    built = cells.app(application.args)
    (deployment,) = application.deployments
    assert deployment.name == built._bound_deployment.name
    grace = ray_pods()["ray-worker"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > deployment.graceful_shutdown_timeout_s
