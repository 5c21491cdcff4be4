"""What the official client gets if it cannot have an answer or does not want it any more."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import grpc
import httpx2
import openai
import pytest
import structlog
from openai import AsyncOpenAI
from structlog.testing import capture_logs

from tandem.protos.errors import InvalidRequest
from tandem.protos.service.drain import Drain
from tandem.protos.transport import status
from tandem.v1 import orchestrator_pb2 as api
from tests.http_served import PROMPT, Door, complete, converse, leave, serve_http
from tests.served import Pair, Services
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.usefixtures("nothing_left")

JSON = {"content-type": "application/json"}


def over_http(door: Door) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=door.url, trust_env=False, timeout=LIMIT)


async def refusal(work: Any, kind: type[openai.APIStatusError] = openai.BadRequestError) -> Any:
    with pytest.raises(kind) as refused:
        await work
    return refused.value


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 4000}, "max_tokens"),
        ({"prompt": [1, 99999]}, "prompt"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]"),
    ],
)
async def test_what_cannot_be_done_is_a_400_that_names_it(
    client: AsyncOpenAI, options: dict[str, Any], param: str
) -> None:
    error = await refusal(complete(client, **options))
    assert (error.type, error.param) == ("invalid_request_error", param) or (
        error.param or ""
    ).startswith(f"{param}.")
    assert param in error.message


async def test_a_chats_refusals_name_its_own_fields(client: AsyncOpenAI) -> None:
    many = await refusal(converse(client, max_tokens=openai.omit, max_completion_tokens=4000))
    assert many.param == "max_completion_tokens"
    top = await refusal(converse(client, logprobs=True, top_logprobs=21))
    assert top.param == "top_logprobs" and "above 20" in top.message
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    untaught = await refusal(converse(client, tools=tools))
    assert (
        untaught.param == "tools"
        and "not supported by the model's chat template" in untaught.message
    )
    image = [{"type": "image_url", "image_url": {"url": "data:"}}]
    pictures: Any = [{"role": "user", "content": image}]
    assert "messages[0].content" in (await refusal(converse(client, messages=pictures))).message
    developer: Any = [{"role": "developer", "content": "x"}]
    error = await refusal(converse(client, messages=developer))
    assert "Only system, user and assistant have a part." in error.message


async def test_grpc_names_fields_as_the_client_has_sent_them(door: Door) -> None:
    request = api.GenerateRequest(messages=api.Messages(), sampling=api.Sampling(top_p=2))
    request.messages.messages.add(role="user", content="Hello")
    request.messages.template_arguments["messages"] = "x"
    stream = api.StreamGenerateRequest(request=request, resume_from=3)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        _ = [event async for event in door.stub.StreamGenerate(stream)]
    assert fields(failure) == ["resume_from"]
    stream.resume_from = 0
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        _ = [event async for event in door.stub.StreamGenerate(stream)]
    assert fields(failure) == ["request.messages.template_arguments"]
    request.messages.Clear()
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await door.stub.Generate(request)
    assert fields(failure) == ["messages", "sampling.top_p"]


def fields(failure: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> list[str]:
    error = status.decode(failure.value)
    assert isinstance(error, InvalidRequest)
    return [violation.field for violation in error.violations]


async def test_another_model_is_not_found(client: AsyncOpenAI) -> None:
    error = await refusal(complete(client, model="gpt-9"), openai.NotFoundError)
    assert (error.param, error.code) == ("model", "model_not_found")
    await refusal(client.models.retrieve("gpt-9"), openai.NotFoundError)
    (model,) = (await client.models.list()).data
    assert (await client.models.retrieve("target")) == model


async def test_a_model_has_the_name_that_its_operator_chose(
    services: Services, embedded: Pair
) -> None:
    async with (
        serve_http(services, embedded.target, served_model_name="mine") as door,
        AsyncOpenAI(base_url=f"{door.url}/v1", api_key="-", max_retries=0) as client,
    ):
        assert [each.id async for each in client.models.list()] == ["mine"]
        assert (await complete(client, model="mine")).model == "mine"
        with pytest.raises(openai.NotFoundError, match="the served model is 'mine'"):
            await complete(client, model="target")


async def test_a_client_that_leaves_has_nothing_generated(
    client: AsyncOpenAI, door: Door, services: Services
) -> None:
    stream = await complete(client, stream=True, max_tokens=450, extra_body={"ignore_eos": True})
    async for _ in stream:
        break
    await leave(stream)
    await services.assert_no_session_is_left()
    work = asyncio.create_task(complete(client, max_tokens=450, extra_body={"ignore_eos": True}))

    async def running() -> int:
        (model,) = (await door.stub.GetStatus(api.GetStatusRequest())).models
        return model.requests_running

    await until(running)
    work.cancel()
    await services.assert_no_session_is_left()


async def test_a_request_has_one_id(client: AsyncOpenAI) -> None:
    named = await complete(client, extra_headers={"x-request-id": "mine-1"})
    assert (named._request_id, named.id) == ("mine-1", "cmpl-mine-1")
    other = await complete(client)
    assert other.id == f"cmpl-{other._request_id}"


async def test_cached_prefixes_are_shared_by_key(client: AsyncOpenAI) -> None:
    prompt = PROMPT * 8
    for wanted in (False, True):
        found = await complete(client, prompt=prompt, extra_body={"prompt_cache_key": "ours"})
        assert (found.usage.prompt_tokens_details.cached_tokens > 0) == wanted


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/v1/completions", b"", 405),
        ("GET", "/nothing", b"", 404),
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b" " * (5 << 20), 413),
    ],
)
async def test_every_refusal_has_openais_shape_and_an_id(
    door: Door, method: str, path: str, content: bytes, status: int
) -> None:
    async with over_http(door) as http:
        refused = await http.request(method, path, content=content, headers=JSON)
    assert refused.status_code == status and refused.headers["x-request-id"]
    assert set(refused.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_page_of_another_site_is_not_answered(door: Door) -> None:
    async with over_http(door) as http:
        plain = await http.post(
            "/v1/completions", content=b"{}", headers={"content-type": "text/plain"}
        )
        named = await http.get("/v1/models", headers={"host": "evil.example"})
    assert (plain.status_code, named.status_code) == (415, 403)


async def test_health_is_that_of_the_verifier(door: Door) -> None:
    async with over_http(door) as http:

        async def healthy() -> bool:  # on a busy machine a verifier may be late for a moment
            health = await http.get("/health")
            return (health.status_code, health.json()) == (200, {})

        await until(healthy)


async def test_a_stream_that_runs_is_finished_when_the_server_stops(
    services: Services, embedded: Pair
) -> None:
    drain = Drain(LIMIT)
    async with AsyncExitStack() as scope:
        door = await scope.enter_async_context(serve_http(services, embedded.target, drain))
        client = AsyncOpenAI(base_url=f"{door.url}/v1", api_key="-", max_retries=0)
        await scope.enter_async_context(client)
        options: dict[str, Any] = {"max_tokens": 100, "extra_body": {"ignore_eos": True}}
        chunks = aiter(await complete(client, stream=True, **options))
        await anext(chunks)
        stopping = asyncio.create_task(drain.finish())
        await asyncio.sleep(0)
        error = await refusal(complete(client), openai.InternalServerError)
        assert error.status_code == 503
        ends = [chunk.choices[0].finish_reason async for chunk in chunks]
        assert ends[-1] == "length"
        await stopping


async def test_a_full_server_asks_to_come_back(services: Services, embedded: Pair) -> None:
    async with (
        serve_http(services, embedded.target, max_running=1, max_waiting=0) as full,
        AsyncOpenAI(base_url=f"{full.url}/v1", api_key="-", max_retries=0) as client,
    ):
        running = await complete(client, stream=True, max_tokens=400)
        await anext(aiter(running))
        error = await refusal(complete(client), openai.RateLimitError)
        assert int(error.response.headers["retry-after"]) >= 1
        assert error.code == "rate_limit_exceeded"
        await leave(running)
        chat = await refusal(converse(client.with_options(max_retries=5)))
        assert "chat template" in chat.message and chat.param == "messages"


async def test_each_refusal_leaves_one_log_line(client: AsyncOpenAI) -> None:
    """A refused request leaves one log line, whether or not it could be decoded."""
    merge = structlog.contextvars.merge_contextvars
    with capture_logs(processors=[merge]) as lines:
        refused = [
            await refusal(complete(client, **each)) for each in ({"n": 0}, {"max_tokens": 0})
        ]
    of_requests = [line for line in lines if "request_id" in line]
    logged = [(line["event"], line["code"], line["request_id"]) for line in of_requests]
    ids = [each.response.headers["x-request-id"] for each in refused]
    assert logged == [("a request was refused", "INVALID_ARGUMENT", each) for each in ids]
    assert PROMPT not in str(lines)
