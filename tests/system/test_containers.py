"""The compose file on a Docker engine: up, text over gRPC and HTTP, kill -9, down.

Needs an engine that has the images (`docker compose -f deploy/compose.yaml build`), and is skipped
without. `TANDEM_COMPOSE` names another compose file on top, `TANDEM_UP_SECONDS` and
`TANDEM_BACK_SECONDS` how long a busy machine may take.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import DEPLOY, program

MORE = os.environ.get("TANDEM_COMPOSE")
UP_SECONDS = float(os.environ.get("TANDEM_UP_SECONDS", "60"))
BACK_SECONDS = float(os.environ.get("TANDEM_BACK_SECONDS", "15"))
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
    return json.load(urllib.request.urlopen(request, context=tls, timeout=30))
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


def compose(*words: str, seconds: float = 120) -> str:
    """What a command of docker compose prints; raises CalledProcessError."""
    command = [program("docker"), "compose", *FILES, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def up() -> Iterator[float]:
    """Everything is healthy; yields the seconds that took."""
    images = (f"tandem-{role}:{os.environ.get('TANDEM_TAG', 'local')}" for role in MODULES)
    if subprocess.run(
        [program("docker"), "image", "inspect", *images], capture_output=True
    ).returncode:
        pytest.skip("no Docker engine that has the images")
    began = time.monotonic()
    try:
        compose("up", "--no-build", "--detach", "--wait", seconds=600)
        yield time.monotonic() - began
    finally:
        compose("down", "--volumes", seconds=200)


def over_grpc() -> str:
    """The text of an answer, for a client in a container of its own."""
    ask = ["generate", "--json", *GREEDY, PROMPT]
    answer: dict[str, Any] = json.loads(compose("run", "--rm", "-T", "client", *ask))
    return str(answer["text"])


def over_http() -> str:
    """The same over HTTP."""
    return compose(*CLIENT, "python", "client", "-c", OVER_HTTP)


def are_healthy(service: str, count: int) -> bool:
    """Whether so many containers of a service are healthy."""
    lines = compose("ps", "--format", "json", service).splitlines()
    return sum(json.loads(line)["Health"] == "healthy" for line in lines) == count


def until(happens: Callable[[], bool], seconds: float) -> float:
    """Seconds until something happens; what fails meanwhile has not happened."""
    began = time.monotonic()
    while True:
        try:
            if happens():
                return time.monotonic() - began
        except subprocess.CalledProcessError as error:
            problem = error.stderr
        else:
            problem = ""
        assert time.monotonic() - began < seconds, problem
        time.sleep(0.2)


def test_containers_generate_and_come_back(up: float, record_property: Any) -> None:
    record_property("healthy after, s", round(up, 1))
    text = over_grpc()
    assert text and over_http() == text
    took = {}
    for role, module in MODULES.items():
        compose("exec", "-T", role, "python", "-c", KILL.format(module=module))
        took[role] = until(lambda: over_grpc() == text, BACK_SECONDS)
        until(partial(are_healthy, role, 2 if role == "drafter" else 1), 4 * UP_SECONDS)
    assert over_http() == text
    record_property("text again after kill -9, s", {role: round(took[role], 1) for role in took})
    print(f"\nhealthy after {up:.1f} s; text again after kill -9: {took}")
    assert up <= UP_SECONDS


def test_a_program_on_the_host_gets_the_clients_certificate(up: float, tmp_path: Path) -> None:
    packed = compose(*CLIENT, "tar", "client", "-C", "/certs", "-c", ".")
    subprocess.run(["tar", "-x", "-C", tmp_path], input=packed, text=True, check=True)
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")


def test_prometheus_sees_every_replica_and_alertmanager(up: float) -> None:
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

    until(jobs, UP_SECONDS)
    assert answer("rules")["groups"]
    assert answer("alertmanagers")["activeAlertmanagers"]
