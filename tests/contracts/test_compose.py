"""The compose file: containers are locked down, services accept their settings, and mounted files
exist.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.protos.service.config import ROLES
from tests.manifests import DEPLOY, KINDS, compose, program, settings_of

SETTINGS = DEPLOY / "compose" / "tandem.yaml"


def services() -> dict[str, Any]:
    """Return all containers by their names."""
    found: dict[str, Any] = compose()["services"]
    return found


def test_docker_compose_reads_the_file() -> None:
    command = [program("docker"), "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "-q"]
    if subprocess.run([*command[:2], "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose")
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", services())
def test_a_container_is_locked_down(name: str) -> None:
    container = services()[name]
    assert container["read_only"] and container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert container["pids_limit"] and container["logging"]["options"]["max-size"]
    assert not container.keys() & {"privileged", "cap_add", "user", "devices"}
    once = name in ("certs", "models", "client")
    assert container["restart"] == ("no" if once else "unless-stopped")
    assert once or container["mem_limit"]
    assert all(port.startswith("127.0.0.1:") for port in container.get("ports", ()))


@pytest.mark.parametrize("role", ROLES)
def test_a_service_accepts_its_settings(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = services()[role]
    config = settings_of(role, SETTINGS.read_text(encoding="utf-8"), {}, monkeypatch, tmp_path)
    assert config.tls and f"{role}-certs:/certs:ro" in container["volumes"]
    assert container["environment"] == {"TANDEM_CONFIG": "/etc/tandem/tandem.yaml"}
    assert float(container["stop_grace_period"].removesuffix("s")) > config.drain_seconds
    published = {int(port.rpartition(":")[2]) for port in container.get("ports", ())}
    assert published <= {config.port, getattr(config, "http_port", None)}
    assert (config.metrics_port, config.metrics_tls) == (9090, False), "the images ask there"
    image = re.sub(r":\$.*", "", container["image"])
    assert (image, container["build"]["target"]) == (f"tandem-{role}", role)


def test_model_services_are_found_by_name_at_their_ports() -> None:
    settings = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    assert settings.keys() == KINDS.keys()
    for role in ("verifier", "drafter"):
        source = f"dns:///{role}:{settings[role]['port']}"
        assert settings["orchestrator"][role] == source
        replicas = services()[role].get("deploy", {}).get("replicas", 1)
        assert settings["orchestrator"].get(f"expected_{role}s", 1) == replicas


def test_files_that_are_mounted_exist() -> None:
    for container in services().values():
        for volume in container.get("volumes", ()):
            source = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
            else:
                assert source in compose()["volumes"]


def test_prometheus_reads_the_metrics_page_of_every_replica() -> None:
    config = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    settings = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    found = {}
    for job in config["scrape_configs"]:
        (source,) = job["dns_sd_configs"]
        (name,) = source["names"]
        found[name] = source["port"]
        assert job["job_name"] == f"tandem-{name}"
    assert found == {role: settings[role]["metrics_port"] for role in ROLES}
    mounted = " ".join(services()["prometheus"]["volumes"])
    assert all(f"/etc/prometheus/{name}:ro" in mounted for name in config["rule_files"])


def test_each_service_sees_its_own_key_alone() -> None:
    volumes = {
        name: [each for each in container.get("volumes", ()) if "-certs:" in each or "ca:" in each]
        for name, container in services().items()
        if name != "certs"
    }
    seen = {name: found for name, found in volumes.items() if found}
    assert seen == {name: [f"{name}-certs:/certs:ro"] for name in (*ROLES, "client")}
    script = DEPLOY / "compose" / "certs.sh"
    subprocess.run(["sh", "-n", script], check=True, env=os.environ)
    for line in re.findall(r"--name (\w+)", script.read_text(encoding="utf-8")):
        assert line in services()
