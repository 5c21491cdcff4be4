"""Ports with TLS: who may connect, and how certificates are replaced while calls run."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from structlog.testing import capture_logs

from tandem import AsyncClient
from tandem.orchestrator.cli import certificates
from tandem.protos.errors import PermissionDenied, Unusable
from tandem.protos.tls import Tls
from tandem.protos.transport import rpc, status
from tandem.protos.transport.guard import Peers, common_name
from tandem.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from tests.certificates import made, tls_of
from tests.contracts.test_status import reply
from tests.waiting import LIMIT

SWAPS, MESSAGES = 4, 20


class Counting(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """A service that counts to `MESSAGES`, waits until the caller leaves, and records who
    called.
    """

    def __init__(self) -> None:
        self.callers: list[str] = []

    async def StreamGenerate(
        self, request: object, context: Any
    ) -> AsyncIterator[orchestrator_pb2.StreamGenerateResponse]:
        self.callers.append(common_name(context))
        for number in range(MESSAGES + 1):
            yield reply([number])
        await asyncio.Event().wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def serving(tls: Tls, *peers: str) -> AsyncIterator[tuple[Counting, str]]:
    """Open a port with TLS."""
    servicer = Counting()
    security = rpc.Security(tls, Peers(peers) if peers else None)
    async with rpc.serving("127.0.0.1", 0, servicer, security=security) as address:
        yield servicer, address


async def first(channel: aio.Channel) -> list[int]:
    """Return the first message of a call, which then ends."""
    call = orchestrator_pb2_grpc.OrchestratorServiceStub(channel).StreamGenerate(
        orchestrator_pb2.StreamGenerateRequest(), timeout=LIMIT
    )
    try:
        return list((await anext(aiter(call))).chunk.token_ids)
    finally:
        call.cancel()


@pytest.mark.parametrize("wrong", ["plaintext", "none", "other_ca", "other_root", "other_name"])
async def test_wrong_credentials_end_in_the_handshake(
    folder: Path, tmp_path: Path, wrong: str
) -> None:
    own, other = tls_of(folder, "client"), tls_of(made(tmp_path), "client")
    cases = {
        "plaintext": None,
        "none": Tls(own.ca),
        "other_ca": replace(other, ca=own.ca),
        "other_root": replace(own, ca=other.ca),
        "other_name": own,
    }
    role = "drafter" if wrong == "other_name" else "verifier"
    async with serving(tls_of(folder, "verifier")) as (servicer, address):
        async with rpc.connect(address, cases[wrong], role) as channel:
            with pytest.raises(aio.AioRpcError) as failure:
                await first(channel)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert servicer.callers == []


@pytest.mark.parametrize("address", ["10.0.0.1:50051", "dns:///front-ends:50051", "[::]:1"])
async def test_a_token_leaves_the_machine_encrypted_or_not_at_all(address: str) -> None:
    with pytest.raises(Unusable, match=r"token would be sent to .* in the clear"):
        AsyncClient("127.0.0.1:50051", address, token="a-token")
    await AsyncClient(address).close()
    await AsyncClient("localhost:50051", "[::1]:50051", token="a-token").close()


async def test_a_host_name_must_be_in_the_certificate(folder: Path) -> None:
    """A certificate must also fit a host name with several addresses."""
    own = tls_of(folder, "client")
    async with serving(tls_of(folder, "verifier")) as (_, address):
        port = address.rpartition(":")[2]
        for name in (f"localhost:{port}", f"dns:///localhost:{port}"):
            async with rpc.connect(name, own, "any") as channel:
                assert await first(channel) == [0]
        async with rpc.connect(f"ip6-localhost:{port}", own) as channel:
            with pytest.raises(aio.AioRpcError):
                await first(channel)


async def test_a_known_peer_that_may_not_call_is_refused_by_name(folder: Path) -> None:
    async with serving(tls_of(folder, "verifier"), "orchestrator", "other") as (_, address):
        async with rpc.connect(address, tls_of(folder, "orchestrator"), "verifier") as channel:
            assert await first(channel) == [0]
        async with rpc.connect(address, tls_of(folder, "drafter"), "verifier") as channel:
            with pytest.raises(aio.AioRpcError) as failure:
                await first(channel)
    assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED
    error = status.decode(failure.value)
    assert isinstance(error, PermissionDenied)
    assert str(error) == "a caller with the certificate 'drafter' may not call this service"


async def test_certificates_are_swapped_under_streams_and_no_stream_ends(tmp_path: Path) -> None:
    """The port's and the channel's certificates change, and each new call shows the newest one."""
    made(tmp_path)
    tls, peer = tls_of(tmp_path, "verifier"), tls_of(tmp_path, "client")
    async with (
        serving(tls) as (servicer, address),
        rpc.connect(address, peer, "verifier") as channel,
    ):
        calls, reads = [], []
        for swap in range(SWAPS):
            stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
            call = stub.StreamGenerate(orchestrator_pb2.StreamGenerateRequest(), timeout=LIMIT)
            calls.append(call)
            reads.append(aiter(call))
            assert list((await anext(reads[-1])).chunk.token_ids) == [0]
            certificates.make(tmp_path, force=True, days=swap + 1)
        for read in reads:
            messages = [list((await anext(read)).chunk.token_ids) for _ in range(MESSAGES)]
            assert messages == [[number + 1] for number in range(MESSAGES)], "nothing is lost"
        for call in calls:
            call.cancel()
        assert await first(channel) == [0]
        assert len(servicer.callers) == SWAPS + 1


async def test_another_ca_for_both_sides_is_used_without_a_restart(tmp_path: Path) -> None:
    now, then = made(tmp_path / "now"), made(tmp_path / "then")
    async with serving(tls_of(now, "verifier")) as (_, address):
        async with rpc.connect(address, tls_of(now, "client"), "verifier") as channel:
            assert await first(channel) == [0]
            for file in then.iterdir():
                shutil.copy(file, now / file.name)
            assert await first(channel) == [0]
        async with rpc.connect(address, tls_of(then, "client"), "verifier") as channel:
            assert await first(channel) == [0]


async def test_a_new_channel_uses_the_certificate_of_before_while_half_of_a_pair_is_new(
    tmp_path: Path,
) -> None:
    """The channel is one for the same files; without an earlier channel it is refused."""
    folder, other = made(tmp_path / "old"), tls_of(made(tmp_path / "new"), "client")
    own, unknown = tls_of(folder, "client"), tmp_path / "unknown"
    assert other.key and own.key
    async with serving(tls_of(folder, "verifier")) as (servicer, address):
        async with rpc.connect(address, own, "verifier") as channel:
            assert await first(channel) == [0]
        shutil.copy(other.key, own.key)
        with capture_logs() as lines:
            async with rpc.connect(address, own, "verifier") as channel:
                assert await first(channel) == [0]
        assert {line["event"] for line in lines} == {"certificates cannot be read again"}
        assert servicer.callers == ["client", "client"]
        shutil.copytree(folder, unknown)
        with pytest.raises(Unusable, match="not a certificate and its key"):
            rpc.connect(address, tls_of(unknown, "client"), "verifier")


@pytest.mark.parametrize("broken", ["ca.pem", "verifier.pem", "verifier-key.pem"])
@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_files_that_cannot_be_used_are_one_line(
    folder: Path, tmp_path: Path, broken: str, content: str | None
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / broken).unlink()
    if content is not None:
        (copy / broken).write_text(content)
    with pytest.raises(Unusable) as refused:
        tls_of(copy, "verifier").read()
    assert broken in str(refused.value) and "\n" not in str(refused.value)
