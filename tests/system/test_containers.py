"""The compose file on a Docker engine: start, text over gRPC and HTTP, kill -9, stop.

The tests need a Docker engine that has the images (`docker compose -f deploy/compose.yaml build`),
and are skipped without one. `TANDEM_COMPOSE` names an additional compose file.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import DEPLOY, program
from tests.waiting import wait_until

pytestmark = pytest.mark.long("starts containers")

MORE = os.environ.get("TANDEM_COMPOSE")
FILES = [word for file in (DEPLOY / "compose.yaml", MORE) if file for word in ("-f", str(file))]
CLIENT = ["run", "--rm", "-T", "--entrypoint"]
PROMPT = "Once upon a time"
GREEDY = ["--temperature", "0", "--max-new-tokens", "40"]
OVER_HTTP = """
import json, ssl, urllib.request
tls = ssl.create_default_context(cafile="/certs/ca.pem")
tls.load_cert_chain("/certs/cert.pem", "/certs/key.pem")
ask = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
def answer(path, body=None):
    head = {"content-type": "application/json"}
    request = urllib.request.Request("https://orchestrator:8000/v1/" + path, body, head)
    return json.load(urllib.request.urlopen(request, context=tls))
ask["model"] = answer("models")["data"][0]["id"]
print(answer("completions", json.dumps(ask).encode())["choices"][0]["text"], end="")
"""
ASK = """
from urllib.request import urlopen
print(urlopen("http://prometheus:9090/api/v1/{}").read().decode())
"""
KILL = """
import os, pathlib
for each in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if b"tandem.{module}\\0" in each.read_bytes() + b"\\0" and each.parent.name != "1":
        os.kill(int(each.parent.name), 9)
        break
else:
    raise SystemExit("no such process")
"""
MODULES = {
    "verifier": "verifier_service",
    "drafter": "drafter_service",
    "orchestrator": "orchestrator",
}


def compose(*words: str) -> str:
    """Return what a command of docker compose prints; raises CalledProcessError."""
    command = [program("docker"), "compose", *FILES, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def up() -> Iterator[None]:
    """Start all containers, and wait until they are healthy."""
    images = (f"tandem-{role}:{os.environ.get('TANDEM_TAG', 'local')}" for role in MODULES)
    if subprocess.run(
        [program("docker"), "image", "inspect", *images], capture_output=True
    ).returncode:
        pytest.skip("no Docker engine that has the images")
    try:
        compose("up", "--no-build", "--detach", "--wait")
        yield
    finally:
        compose("down", "--volumes")


def over_grpc() -> str:
    """Return the text of an answer over gRPC, from a client in its own container."""
    ask = ["generate", "--json", *GREEDY, PROMPT]
    answer: dict[str, Any] = json.loads(compose("run", "--rm", "-T", "client", *ask))
    return str(answer["text"])


def over_http() -> str:
    """Return the text of an answer over HTTP."""
    return compose(*CLIENT, "python", "client", "-c", OVER_HTTP)


def are_healthy(service: str, count: int) -> bool:
    """Return whether this many containers of a service are healthy."""
    lines = compose("ps", "--format", "json", service).splitlines()
    return sum(json.loads(line)["Health"] == "healthy" for line in lines) == count


def happens(event: Callable[[], bool]) -> None:
    """Wait for an event; an error of the check means that it has not happened yet."""

    def happened() -> bool:
        with suppress(subprocess.CalledProcessError):
            return event()
        return False

    wait_until(happened)


@pytest.mark.usefixtures("up")
def test_containers_generate_and_come_back() -> None:
    text = over_grpc()
    assert text and over_http() == text
    for role, module in MODULES.items():
        compose("exec", "-T", role, "python", "-c", KILL.format(module=module))
        happens(lambda: over_grpc() == text)
        happens(partial(are_healthy, role, 2 if role == "drafter" else 1))
    assert over_http() == text


@pytest.mark.usefixtures("up")
def test_a_program_on_the_host_gets_the_clients_certificate(tmp_path: Path) -> None:
    packed = compose(*CLIENT, "tar", "client", "-C", "/certs", "-c", ".")
    subprocess.run(["tar", "-x", "-C", tmp_path], input=packed, text=True, check=True)
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")


@pytest.mark.usefixtures("up")
def test_prometheus_sees_every_replica_and_alertmanager() -> None:
    def answer(path: str) -> Any:
        return json.loads(compose(*CLIENT, "python", "client", "-c", ASK.format(path)))["data"]

    def jobs() -> bool:
        found = [each for each in answer("targets")["activeTargets"] if each["health"] == "up"]
        return sorted(each["labels"]["job"] for each in found) == [
            "tandem-drafter",
            "tandem-drafter",
            "tandem-orchestrator",
            "tandem-verifier",
        ]

    happens(jobs)
    assert answer("rules")["groups"]
    assert answer("alertmanagers")["activeAlertmanagers"]
