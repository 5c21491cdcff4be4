"""The files of `deploy/` as the tests read them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem import models
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.service.config import ServiceConfig, configured
from tests.documents import ROOT

DEPLOY = ROOT / "deploy"
OVERLAYS = ("cpu", "gpu", "edge-drafter", "public")
KUBERAY = "kuberay"  # the overlay in which KubeRay makes the pods
KINDS: dict[str, type[ServiceConfig]] = {
    "drafter": ModelServiceConfig,
    "verifier": ModelServiceConfig,
    "orchestrator": OrchestratorConfig,
}


def program(name: str) -> str:
    """Return the path of a program in this environment or on the machine; skip the test without
    it.
    """
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


@cache
def overlay(name: str) -> str:
    """Return an overlay as kustomize renders it."""
    folder = DEPLOY / "kustomize" / "overlays" / name
    command = [program("kubectl"), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def objects(name: str, *kinds: str) -> list[dict[str, Any]]:
    """Return the objects of an overlay that have one of these kinds."""
    return [each for each in yaml.safe_load_all(overlay(name)) if each["kind"] in kinds]


def workloads(name: str) -> dict[str, dict[str, Any]]:
    """Return the pods of an overlay by their services."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in objects(name, "Deployment", "StatefulSet")
    }


def ray_pods() -> dict[str, dict[str, Any]]:
    """Return the pods that KubeRay makes, in the form of manifests, by the names of their
    containers.
    """
    (service,) = objects(KUBERAY, "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    pods = {}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        named = {"name": container["name"], "namespace": service["metadata"]["namespace"]}
        metadata = group["template"]["metadata"] | named
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        assert container["name"] not in pods
        pods[container["name"]] = pod | {"spec": group["template"]["spec"]}
    return pods


def assert_reaches_its_services(name: str, config: OrchestratorConfig) -> None:
    """Check that the Services which an orchestrator of an overlay names exist, with as many pods as
    it expects.
    """
    ports = {
        each["metadata"]["name"]: each["spec"]["ports"][0]["port"]
        for each in objects(name, "Service")
    }
    for source in (*config.verifiers, *config.drafters):
        host, _, port = source.removeprefix("dns:///").partition(":")
        assert ports[host] == int(port)
    pods = {
        each["metadata"]["name"]: each["spec"].get("replicas")
        for each in objects(name, "Deployment", "StatefulSet")
    }
    assert config.expected == {role: pods[role] for role in config.expected}


@cache
def compose() -> Any:
    """Return the services and volumes of the compose file, with variables left as they are."""
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def settings_of(
    role: str, text: str, environment: dict[str, str], patch: pytest.MonkeyPatch, folder: Path
) -> ServiceConfig:
    """Return a service's settings from a file and its environment, with the embedded pair as the
    models and an empty file of clients. Raises Unusable.
    """
    file = folder / f"{role}.yaml"
    file.write_text(text.replace("/models/", f"{models.EMBEDDED}/"), encoding="utf-8")
    (folder / "clients.yaml").write_text("{}", encoding="utf-8")
    for name, value in environment.items():
        patch.setenv(name, value.replace("/clients/", f"{folder}/"))
    patch.setenv("TANDEM_CONFIG", str(file))
    return configured(KINDS[role], role, [])
