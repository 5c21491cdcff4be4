"""Known clients over HTTP, and what no client may read: prompts, tokens, paths and contents of
files.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from collections.abc import AsyncIterator
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from tandem import models
from tandem.protos.errors import InvalidRequest, TandemError
from tests.services.known import ALICE, Known, entry, known_clients

PROMPT, TOKEN, FILE = "canary-of-a-prompt", "canary-of-a-token", "canary-of-a-file"
FOLDER = "canary-of-a-path"  # folder of certificates, keys and clients
READ = ("/v1/models", "/v1/models/target", "/version", "/metrics")
ROUTES = (
    *READ,
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"),
)


@pytest.fixture(scope="module")
async def known(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Known]:
    async with known_clients(tmp_path_factory.mktemp(FOLDER)) as known:
        yield known


async def http(known: Known, path: str, token: str = "", **body: object) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    context = ssl.create_default_context(cafile=known.system.folder / "ca.pem")
    headers = {"content-type": "application/json"}
    if token:
        basic = token.startswith("Basic ")
        headers["authorization"] = token if basic else f"Bearer {token}"
    posts = path in ROUTES and path not in READ
    data = json.dumps(body).encode() if posts else None
    request = Request(known.http + path, data, headers)

    def ask() -> tuple[int, str]:
        try:
            with urlopen(request, context=context) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as refused:
            return refused.code, refused.read().decode()

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "token", ["", TOKEN, ALICE[:-1], hashlib.sha256(ALICE.encode()).hexdigest(), f"Basic {ALICE}"]
)
async def test_no_route_but_health_is_open_to_strangers(
    known: Known, path: str, token: str
) -> None:
    status, text = await http(known, path, token)
    assert status == 401 and json.loads(text)["error"]["code"] == "invalid_api_key"
    assert (await http(known, "/health"))[0] == 200


@pytest.mark.parametrize("path", ROUTES)
async def test_who_may_only_register_has_no_route(known: Known, path: str) -> None:
    known.write(entry("alice", ALICE).replace("}", ", may: [register]}"))
    try:
        assert (await http(known, path, ALICE))[0] == 403
    finally:
        known.all()


async def test_a_known_client_is_served_over_http_until_it_is_removed(known: Known) -> None:
    body = {"prompt": "Once", "max_tokens": 2, "temperature": 0}
    assert (await http(known, "/v1/completions", ALICE, **body))[0] == 200
    known.write(entry("somebody", "another-token"))
    try:
        assert (await http(known, "/v1/completions", ALICE, **body))[0] == 401
    finally:
        known.all()


async def test_prompts_and_tokens_are_shown_nowhere_and_paths_only_to_who_reads_logs(
    known: Known, capfd: pytest.CaptureFixture[str]
) -> None:
    found: list[str] = []
    capfd.readouterr()
    with capture_logs() as lines:
        async with known.system.with_token(ALICE) as client:
            assert (await client.generate(PROMPT, max_new_tokens=2)).token_ids
            with pytest.raises(InvalidRequest) as wrong:
                await client.generate(PROMPT, top_p=1.5, stop=[PROMPT] * 100)
            found += [str(wrong.value), str(await client.status(history=True))]
        async with known.system.with_token(TOKEN) as client:
            with pytest.raises(TandemError) as refused:
                await client.generate(PROMPT)
            found.append(str(refused.value))
        for token in (TOKEN, ALICE):
            wrongs = {"prompt": PROMPT, "suffix": PROMPT, "stop": [PROMPT] * 100}
            status, text = await http(known, "/v1/completions", token, **wrongs)
            assert status in (400, 401)
            found.append(text)
        known.write(f"{FILE}: [{FILE}, {TOKEN}")
        assert (await http(known, "/v1/models", ALICE))[0] == 200
        known.all()
    found += [generate_latest(each).decode() for each in known.system.registries]
    shown, logged = "\n".join(found), "\n".join([*map(repr, lines), *capfd.readouterr()])
    assert "clients cannot be read again" in logged and "tandem_" in shown
    for canary in (PROMPT, TOKEN, FILE, ALICE):
        assert canary not in shown + logged
    for path in (FOLDER, str(models.EMBEDDED)):
        assert path not in shown
