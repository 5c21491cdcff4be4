"""A front end that is stopping sends its clients elsewhere, and the answers that it cuts say so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import httpx2
import pytest
from grpc import aio
from prometheus_client import CollectorRegistry

from tandem.orchestrator.http import server as http_server
from tandem.orchestrator.http.app import HttpApi
from tandem.protos.types import ModelDescription
from tandem.v1 import orchestrator_pb2 as api
from tests.services.fronts import PROMPT, Front, served
from tests.services.test_answers import END, TOKENIZER
from tests.waiting import LIMIT

MODEL = ModelDescription("tiny", "", TOKENIZER.get_vocab_size(), 512, (END,), "", "")
CUT = "the service stopped before the answer was complete"


@asynccontextmanager
async def over_http(front: Front) -> AsyncIterator[httpx2.AsyncClient]:
    app = HttpApi(front.http, MODEL, TOKENIZER, CollectorRegistry()).app()
    async with (
        http_server.serving(app, "127.0.0.1", 0) as url,
        httpx2.AsyncClient(base_url=url, trust_env=False, timeout=LIMIT) as client,
    ):
        yield client


def body(stream: bool = False) -> dict[str, object]:
    return {"model": "tiny", "prompt": PROMPT, "stream": stream}


async def test_a_lame_duck_takes_requests_and_has_http_clients_connect_again() -> None:
    async with served() as front, over_http(front) as client:
        before = await client.post("/v1/completions", json=body())
        leaving = asyncio.create_task(front.drain.leave(LIMIT))
        await asyncio.sleep(0)
        during = await client.post("/v1/completions", json=body())
        health = await client.get("/health")
        await front.ask()
        front.drain.cut()
        await leaving
        await front.drain.finish()
        after = await client.post("/v1/completions", json=body())
    assert before.json()["choices"] == during.json()["choices"]
    assert [each.status_code for each in (before, during, health, after)] == [200, 200, 503, 503]
    said = [each.headers.get("connection") for each in (before, during, health, after)]
    assert said == [None, "close", "close", "close"]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_cut_over_http_says_so(stream: bool) -> None:
    async with served() as front, over_http(front) as client:
        front.runner.go.clear()
        asked = asyncio.create_task(client.post("/v1/completions", json=body(stream)))
        await front.runner.reached.wait()
        await front.drain.finish()
        answer = await asked
        (line,) = await front.ended(1)
    problem = json.loads(answer.text.split("data: ")[-1])["error"]
    assert (answer.status_code, problem["message"]) == (200 if stream else 503, CUT)
    assert problem["type"] == "server_error"
    assert line["code"] == "UNAVAILABLE"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_cut_over_grpc_says_so(stream: bool) -> None:
    async with served() as front:
        front.runner.go.clear()
        request = api.GenerateRequest(text=PROMPT)
        calls = front.stub.StreamGenerate, front.stub.Generate

        async def ask() -> None:
            if stream:
                async for _ in calls[0](api.StreamGenerateRequest(request=request)):
                    pass
            else:
                await calls[1](request)

        asked = asyncio.create_task(ask())
        await front.runner.reached.wait()
        await front.drain.finish()
        with pytest.raises(aio.AioRpcError, match=CUT) as cut:
            await asked
        (line,) = await front.ended(1)
    assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
    assert line["code"] == "UNAVAILABLE"
