"""Manifests for Kubernetes are valid, locked down, and agree with the services' settings."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem import models
from tandem.orchestrator.cli import certificates
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.service.probes import ALIVE, ANSWER_SECONDS, READY
from tests.documents import ROOT, blocks
from tests.manifests import (
    DEPLOY,
    KUBERAY,
    OVERLAYS,
    assert_reaches_its_services,
    objects,
    overlay,
    program,
    ray_pods,
    settings_of,
    workloads,
)

LOCKED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
SECRET = "a-token-that-is-long-enough"


def test_every_object_fits_the_schema_of_kubernetes(tmp_path: Path) -> None:
    """Each object is checked once, with those that KubeRay makes."""
    (service,) = objects(KUBERAY, "RayService")
    serve = {"apiVersion": "v1", "kind": "Service"} | service["spec"]["serveService"]
    made = [*ray_pods().values(), serve, *objects(KUBERAY, "ConfigMap", "NetworkPolicy", "Service")]
    for name in OVERLAYS:
        made += yaml.safe_load_all(overlay(name))
    file = tmp_path / "made.yaml"
    file.write_text("---\n".join({yaml.safe_dump(each) for each in made}), encoding="utf-8")
    command = [program("kubernetes-validate"), "--strict", "--quiet", "--no-warn", file]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_checkov_finds_what_is_waived_and_nothing_else(tmp_path: Path) -> None:
    checkov = program("checkov")
    (tmp_path / "Dockerfile").write_bytes((DEPLOY / "docker" / "Dockerfile").read_bytes())
    for name in OVERLAYS:
        (tmp_path / f"{name}.yaml").write_text(overlay(name), encoding="utf-8")
    for name, pod in ray_pods().items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(pod), encoding="utf-8")
    waivers = ["--config-file", str(DEPLOY / "checkov.yaml"), "--skip-download"]
    command = [checkov, *waivers, "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    """Return a container's variables, including those from secrets and fields."""
    given = {each["name"]: each.get("value", SECRET) for each in container["env"]}
    return {name: value for name, value in given.items() if name.startswith("TANDEM__")}


@pytest.mark.parametrize("name", OVERLAYS)
def test_services_accept_their_settings_and_have_the_ports_that_they_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {each["metadata"]["name"]: each["data"] for each in objects(name, "ConfigMap")}
    for role, pod in workloads(name).items():
        (container,) = pod["containers"]
        (volume,) = [each for each in pod["volumes"] if each["name"] == "settings"]
        text = files[volume["configMap"]["name"]]["tandem.yaml"]
        config = settings_of(role, text, environment_of(container), monkeypatch, tmp_path)
        wanted = {"grpc": config.port, "metrics": config.metrics_port}
        if http := getattr(config, "http_port", None):
            wanted["http"] = http
        assert {each["name"]: each["containerPort"] for each in container["ports"]} == wanted
        assert pod["terminationGracePeriodSeconds"] > config.drain_seconds
        assert config.tls and not config.insecure
        assert not config.metrics_tls, "else probes need `scheme: HTTPS`"
        if isinstance(config, OrchestratorConfig):
            assert_reaches_its_services(name, config)


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_are_locked_down_and_probed_at_pages_that_exist(name: str) -> None:
    for role, pod in workloads(name).items():
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 65532)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        mounted = {each["name"] for each in pod["volumes"]}
        for container in (*pod["containers"], *pod["initContainers"]):
            assert container["securityContext"] == LOCKED
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
            assert {each["name"] for each in container["volumeMounts"]} <= mounted
        (container,) = pod["containers"]
        assert container["image"].startswith(f"tandem-{role}:")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = READY if probe == "readinessProbe" else ALIVE
            assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
            assert container[probe]["timeoutSeconds"] > ANSWER_SECONDS


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_objects_select_exists(name: str) -> None:
    pods = workloads(name)
    for each in objects(name, "PodDisruptionBudget", "PodMonitor"):
        role = each["metadata"]["name"]
        labels = {"name": f"tandem-{role}", "component": role, "part-of": "tandem"}
        labels = {f"app.kubernetes.io/{name}": value for name, value in labels.items()}
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for monitor in objects(name, "PodMonitor"):
        (container,) = pods[monitor["metadata"]["name"]]["containers"]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in {port["name"] for port in container["ports"]}


def test_every_file_of_the_models_is_in_the_lists() -> None:
    """The lists name the files of the embedded pair, one list for each service."""
    sums = {
        path.relative_to(models.EMBEDDED).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in models.EMBEDDED.rglob("*")
        if path.is_file()
    }
    listed = {}
    for role in ("verifier", "drafter", "orchestrator"):
        text = (DEPLOY / "kustomize" / "base" / role / "models.sha256").read_text(encoding="utf-8")
        listed[role] = {line.split()[1]: line.split()[0] for line in text.splitlines()}
        assert listed[role].items() <= sums.items()
    assert listed["verifier"] | listed["drafter"] == sums
    assert "target/tokenizer.json" in listed["orchestrator"]


def test_drafters_at_the_edge_have_no_port_that_others_connect_to() -> None:
    assert not objects("edge-drafter", "Service")
    (policy,) = [
        each
        for each in objects("edge-drafter", "NetworkPolicy")
        if each["metadata"]["name"] == "drafter"
    ]
    assert [rule["ports"] for rule in policy["spec"]["ingress"]] == [[{"port": "metrics"}]]
    (settings,) = objects("edge-drafter", "ConfigMap")
    assert yaml.safe_load(settings["data"]["tandem.yaml"])["drafter"]["register_at"]


def test_clients_outside_of_the_cluster_reach_front_ends_that_know_them_by_a_secret() -> None:
    """The component adds to the overlay `cpu` one Service, one rule, and the file of clients, made
    as `docs/deploying.md` says.
    """
    (service,) = [
        each for each in objects("public", "Service") if each["spec"].get("type") == "LoadBalancer"
    ]
    pod = workloads("public")["orchestrator"]
    (container,) = pod["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert {each["targetPort"] for each in service["spec"]["ports"]} < ports
    (labels,) = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in objects("public", "Deployment")
        if each["metadata"]["name"] == "orchestrator"
    ]
    assert service["spec"]["selector"].items() <= labels.items()
    before, after = (
        each["spec"]["ingress"]
        for name in ("cpu", "public")
        for each in objects(name, "NetworkPolicy")
        if each["metadata"]["name"] == "orchestrator"
    )
    assert after[: len(before)] == before and len(after) == len(before) + 1
    assert {each["port"] for each in after[-1]["ports"]} == ports - {"metrics"}
    (volume,) = [each for each in pod["volumes"] if each["name"] == "clients"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "clients"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    file = environment["TANDEM__ORCHESTRATOR__CLIENTS"]
    secret, name = volume["secret"]["secretName"], file.removeprefix(f"{mount['mountPath']}/")
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    assert f"create secret generic {secret} --from-file={name}\n" in page


def test_the_commands_of_the_page_make_the_secrets_that_pods_mount(tmp_path: Path) -> None:
    (block,) = [
        block
        for block in blocks(ROOT / "docs" / "deploying.md")
        if block.commands[0].startswith("kubectl apply")
    ]
    names = re.findall(r"-k (\S+)", block.text)
    assert [name for name in names if not (ROOT / name / "kustomization.yaml").is_file()] == []
    certificates.make(tmp_path / "certs", ["orchestrator.tandem.svc"])
    (loop,) = [command for command in block.commands if "create secret" in command]
    kubectl = f'kubectl() {{ {program("kubectl")} "$@" --dry-run=client -o yaml; echo ---; }}'
    shell = ["bash", "-euo", "pipefail", "-c", f"{kubectl}\n{loop}"]
    done = subprocess.run(shell, cwd=tmp_path, check=True, capture_output=True, text=True)
    made = {
        each["metadata"]["name"]: set(each["data"])
        for each in yaml.safe_load_all(done.stdout)
        if each
    }
    mounted = {
        volume["secret"]["secretName"]
        for pod in workloads("cpu").values()
        for volume in pod["volumes"]
        if "secret" in volume
    }
    assert made == {name: {"tls.crt", "tls.key", "ca.crt"} for name in mounted}
