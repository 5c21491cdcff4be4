"""What the tests of the HTTP API share: a server of it, and the official client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from tests.http_served import Door, serve_http, with_template
from tests.served import Pair, Services


@pytest.fixture(scope="session")
async def door(
    services: Services, embedded: Pair, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Door]:
    folder = with_template(embedded.target, tmp_path_factory.mktemp("tokenizer"))
    async with serve_http(services, folder) as door:
        yield door


@pytest.fixture(scope="session")
async def client(door: Door) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client:
        yield client
