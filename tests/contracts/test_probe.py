"""The probe of containers: its exit code is what a service's health says, by the same settings."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from tandem.protos import probe
from tandem.protos.errors import Unusable
from tandem.protos.service.config import ROLES
from tandem.protos.transport import rpc
from tandem.protos.transport.health import Health
from tandem.v1 import drafter_pb2, orchestrator_pb2, verifier_pb2_grpc  # noqa: F401
from tests.certificates import made, settings, tls_of
from tests.waiting import LIMIT

IMPATIENT = 0.2  # seconds
PATIENT = f"from tandem.protos import probe; probe.SECONDS = {LIMIT}; probe.main()"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that answers may take long; of one that does not, `IMPATIENT` is enough."""
    monkeypatch.setattr(probe, "SECONDS", LIMIT)


class Verifier(verifier_pb2_grpc.VerifierServiceServicer):
    """No call but those for its health is made."""


async def probed(port: str) -> tuple[int | None, str]:
    """Exit code of the command for a verifier, and what it printed as an error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", PATIENT, "verifier"),
        env=os.environ | {"TANDEM__VERIFIER__PORT": port},
        stderr=PIPE,
    )
    _, problem = await process.communicate()
    return process.returncode, problem.decode()


async def serves(address: str, role: str = "verifier", name: str | None = None) -> bool:
    """What the command asks, with the role's certificates as they are set."""
    asked = probe.service(role) if name is None else name
    return await probe.serves(address, asked, probe.certificates(role), role)


async def test_the_exit_code_is_what_the_service_says_of_itself() -> None:
    health = Health()
    async with rpc.serving("127.0.0.1", 0, Verifier(), health=health) as address:
        port = address.rpartition(":")[2]
        assert await probed(port) == (0, "")
        health.report("model", "it hangs")
        assert await probed(port) == (1, f"verifier at {address}: not serving\n")
        assert await serves(address, name=probe.PROCESS)


async def test_another_service_or_none_at_the_port_is_not_serving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rpc.serving("127.0.0.1", 0, Verifier()) as address:
        assert await serves(address)
        assert not await serves(address, "drafter")
    monkeypatch.setattr(probe, "SECONDS", IMPATIENT)
    assert not await serves(address)


async def test_with_tls_it_shows_the_services_own_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "certs")
    security = rpc.Security(tls_of(folder, "verifier"))
    async with rpc.serving("127.0.0.1", 0, Verifier(), security=security) as address:
        with monkeypatch.context() as patch:
            patch.setattr(probe, "SECONDS", IMPATIENT)
            assert not await serves(address)
        for name, path in settings(folder, "verifier").items():
            monkeypatch.setenv(f"TANDEM__VERIFIER__{name.upper()}", str(path))
        assert await serves(address)


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
    for role in ROLES:
        assert descriptor_pool.Default().FindServiceByName(probe.service(role))
