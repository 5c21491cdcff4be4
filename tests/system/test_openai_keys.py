"""The official client over TLS, with a key for each user."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import yaml
from openai import AsyncOpenAI

from tandem.protos.transport import rpc
from tests.certificates import made, tls_of
from tests.http_served import complete
from tests.services.protected import protected

KEY, DRAFTERS_KEY = "key of alice 0123456789", "key of a drafter 0123456789"


def entry(key: str, *may: str) -> dict[str, Any]:
    return {"token_sha256": hashlib.sha256(key.encode()).hexdigest(), "may": list(may)}


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Path]]:
    """Where the API is, and the folder of its certificates."""
    folder, port = made(tmp_path_factory.mktemp("certificates")), rpc.free_port("127.0.0.1")
    clients = {"alice": entry(KEY, "generate"), "phone": entry(DRAFTERS_KEY, "register")}
    (folder / "clients.yaml").write_text(yaml.safe_dump(clients))
    async with protected(folder, http_port=port, clients=folder / "clients.yaml"):
        yield f"https://localhost:{port}/v1", folder


def client(url: tuple[str, Path], key: str) -> AsyncOpenAI:
    context = ssl.create_default_context(cafile=tls_of(url[1], "client").ca)
    http = httpx2.AsyncClient(verify=context, trust_env=False)
    return AsyncOpenAI(base_url=url[0], api_key=key, max_retries=0, http_client=http)


async def test_a_key_opens_the_api(url: tuple[str, Path]) -> None:
    async with client(url, KEY) as alice:
        assert (await complete(alice)).usage.completion_tokens == 40
        assert [model.id for model in (await alice.models.list()).data] == ["target"]


async def test_without_a_known_key_nothing_is_answered(url: tuple[str, Path]) -> None:
    async with client(url, "another key") as stranger:
        for work in (complete(stranger), stranger.models.list()):
            with pytest.raises(openai.AuthenticationError) as refused:
                await work
            assert refused.value.code == "invalid_api_key"
            assert refused.value.response.headers["www-authenticate"] == "Bearer"


async def test_a_key_that_may_not_generate_is_refused_as_such(url: tuple[str, Path]) -> None:
    async with client(url, DRAFTERS_KEY) as phone:
        with pytest.raises(openai.PermissionDeniedError):
            await complete(phone)


async def test_without_encryption_nobody_answers(url: tuple[str, Path]) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http:
        with pytest.raises(httpx2.HTTPError):
            await http.get(url[0].replace("https", "http") + "/models")
