"""The official client over TLS, with a key for each user, or a certificate."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import yaml
from openai import AsyncOpenAI
from structlog.testing import capture_logs

from tandem.protos.transport import rpc
from tests.certificates import made, tls_of
from tests.http_served import TOKENS, complete
from tests.services.protected import protected
from tests.waiting import LIMIT

KEY, DRAFTERS_KEY = "key of alice 0123456789", "key of a drafter 0123456789"


def entry(key: str, *may: str) -> dict[str, Any]:
    return {"token_sha256": hashlib.sha256(key.encode()).hexdigest(), "may": list(may)}


@dataclass(frozen=True)
class Api:
    """The address of the server, and the folder of its certificates."""

    url: str
    folder: Path

    def client(self, key: str) -> AsyncOpenAI:
        context = ssl.create_default_context(cafile=tls_of(self.folder, "client").ca)
        http = httpx2.AsyncClient(verify=context, trust_env=False)
        return AsyncOpenAI(base_url=self.url, api_key=key, max_retries=0, http_client=http)


@pytest.fixture(scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    folder, port = made(tmp_path_factory.mktemp("certificates")), rpc.free_port("127.0.0.1")
    known = {"alice": entry(KEY, "generate"), "phone": entry(DRAFTERS_KEY, "register")}
    (folder / "clients.yaml").write_text(yaml.safe_dump(known))
    async with protected(folder, http_port=port, clients=folder / "clients.yaml"):
        yield Api(f"https://localhost:{port}/v1", folder)


async def test_a_key_opens_the_api(api: Api) -> None:
    async with api.client(KEY) as alice:
        assert (await complete(alice)).usage.completion_tokens == TOKENS
        assert [model.id for model in (await alice.models.list()).data] == ["target"]


async def test_without_a_known_key_nothing_is_answered(api: Api) -> None:
    async with api.client("another key") as stranger:
        for work in (complete(stranger), stranger.models.list()):
            with pytest.raises(openai.AuthenticationError) as refused:
                await work
            assert refused.value.code == "invalid_api_key"
            assert refused.value.response.headers["www-authenticate"] == "Bearer"


async def test_a_key_that_may_not_generate_is_refused_as_such(api: Api) -> None:
    async with api.client(DRAFTERS_KEY) as phone:
        with pytest.raises(openai.PermissionDeniedError):
            await complete(phone)


async def test_without_encryption_nobody_answers(api: Api) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http:
        with pytest.raises(httpx2.HTTPError):
            await http.get(api.url.replace("https", "http") + "/models")


async def test_a_certificate_is_who_asks_over_https_too(tmp_path: Path) -> None:
    folder, port = made(tmp_path), rpc.free_port("127.0.0.1")
    own = tls_of(folder, "client")
    assert own.cert and own.key
    context = ssl.create_default_context(cafile=own.ca)
    context.load_cert_chain(own.cert, own.key)
    body = {"model": "target", "prompt": "Once", "max_tokens": 2, "temperature": 0}
    async with (
        protected(folder, http_port=port),
        httpx2.AsyncClient(verify=context, trust_env=False, timeout=LIMIT) as http,
    ):
        with capture_logs() as lines:
            answer = await http.post(f"https://localhost:{port}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
    found = [each["client"] for each in lines if each["event"] == "a request has finished"]
    assert found == ["client"]
