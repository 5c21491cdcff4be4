"""The probe of containers: its exit code is what a service's health says, by the same settings."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from tandem.protos import probe
from tandem.protos.errors import Unusable
from tandem.protos.service.config import ROLES
from tandem.protos.transport import rpc
from tandem.protos.transport.health import Health
from tandem.v1 import drafter_pb2, orchestrator_pb2, verifier_pb2, verifier_pb2_grpc
from tests.certificates import made, settings, tls_of

SCHEMAS = (drafter_pb2, orchestrator_pb2, verifier_pb2)


class Verifier(verifier_pb2_grpc.VerifierServiceServicer):
    """No call but those for its health is made."""


async def probed(*arguments: str, **environment: str) -> tuple[int | None, str]:
    """Exit code, and what it printed as an error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "tandem.protos.probe", *arguments),
        env=os.environ | environment,
        stderr=PIPE,
    )
    _, problem = await process.communicate()
    return process.returncode, problem.decode()


async def test_the_exit_code_is_what_the_service_says_of_itself() -> None:
    health = Health()
    async with rpc.serving("127.0.0.1", 0, Verifier(), health=health) as address:
        port = {"TANDEM__VERIFIER__PORT": address.rpartition(":")[2]}
        assert await probed("verifier", **port) == (0, "")
        health.report("model", "it hangs")
        code, problem = await probed("verifier", **port)
        assert (code, problem) == (1, f"verifier at {address}: not serving\n")
        assert await probed("verifier", "--live", **port) == (0, "")


async def test_another_service_or_none_at_the_port_is_not_serving() -> None:
    async with rpc.serving("127.0.0.1", 0, Verifier()) as address:
        port = address.rpartition(":")[2]
        assert not await probe.serves(address, probe.service("drafter"), None, "drafter")
    assert (await probed("verifier", TANDEM__VERIFIER__PORT=port))[0] == 1


async def test_with_tls_it_shows_the_services_own_certificate(tmp_path: Path) -> None:
    folder = made(tmp_path / "certs")
    own = settings(folder, "verifier")
    environment = {f"TANDEM__VERIFIER__{name.upper()}": str(path) for name, path in own.items()}
    security = rpc.Security(tls_of(folder, "verifier"))
    async with rpc.serving("127.0.0.1", 0, Verifier(), security=security) as address:
        port = {"TANDEM__VERIFIER__PORT": address.rpartition(":")[2]}
        assert await probed("verifier", **port, **environment) == (0, "")
        assert (await probed("verifier", **port))[0] == 1


def test_the_port_is_that_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unusable, match=r"verifier\.port: it has to be set"):
        probe.address("verifier")
    assert probe.address("orchestrator") == "127.0.0.1:50051"
    file = tmp_path / "tandem.yaml"
    file.write_text("verifier: {port: 7001, host: 0.0.0.0}\ndrafter: {port: 7002, host: '::'}\n")
    monkeypatch.setenv("TANDEM_CONFIG", str(file))
    assert probe.address("verifier") == "127.0.0.1:7001"
    assert probe.address("drafter") == "[::1]:7002"
    monkeypatch.setenv("TANDEM__VERIFIER__HOST", "10.0.0.1")
    assert probe.address("verifier") == "10.0.0.1:7001"


def test_every_role_has_a_service_of_that_name() -> None:
    names = {
        service.full_name
        for schema in SCHEMAS
        for service in schema.DESCRIPTOR.services_by_name.values()
    }
    assert {probe.service(role) for role in ROLES} <= names
