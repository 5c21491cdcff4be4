"""A whole Tandem with TLS: the same text, and nobody gets in without the right credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc import aio

from tandem import AsyncClient
from tandem.protos.errors import TransportLost
from tandem.protos.transport import rpc
from tandem.v1 import verifier_pb2, verifier_pb2_grpc
from tests.certificates import made, settings, tls_of
from tests.conftest import Services, serve_all
from tests.services.protected import Protected, protected

PROMPT, OPTIONS = "Once upon a time", {"max_new_tokens": 32, "temperature": 0.7, "seed": 5}


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Protected]:
    async with protected(made(tmp_path_factory.mktemp("certificates"))) as system:
        yield system


async def test_the_text_is_the_same_and_drafts_are_accepted(
    system: Protected, services: Services
) -> None:
    async with system.client() as client:
        encrypted = await client.generate(PROMPT, **OPTIONS)
        async with asyncio.timeout(60):
            answer = encrypted
            while not answer.speculation.num_accepted_draft_tokens:
                answer = await client.generate(PROMPT, **OPTIONS)
        assert answer.text == encrypted.text
        (model,) = (await client.status()).models
        assert [each.serving for each in (*model.verifiers, *model.drafters)] == [True, True]
    async with (
        serve_all(services, ray=False) as plain,
        AsyncClient(plain.address) as client,
    ):
        assert (await client.generate(PROMPT, **OPTIONS)).text == encrypted.text


@pytest.mark.parametrize("wrong", ["plaintext", "no certificate", "another CA"])
async def test_clients_with_wrong_credentials_do_not_get_in(
    system: Protected, tmp_path: Path, wrong: str
) -> None:
    ca = {"tls_ca": system.folder / "ca.pem"}
    cases = {
        "plaintext": {},
        "no certificate": ca,
        "another CA": settings(made(tmp_path), "client") | ca,
    }
    async with AsyncClient(system.orchestrator, retry_seconds=0.1, **cases[wrong]) as client:
        with pytest.raises(TransportLost):
            await client.generate(PROMPT, **OPTIONS)


async def test_a_client_s_certificate_does_not_open_a_model_service(system: Protected) -> None:
    async with rpc.connect(system.verifier, tls_of(system.folder, "client"), "verifier") as channel:
        describe = verifier_pb2_grpc.VerifierServiceStub(channel).DescribeVerifier
        with pytest.raises(aio.AioRpcError) as failure:
            await describe(verifier_pb2.DescribeVerifierRequest(), timeout=10)
    assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED
