"""A client leaves a front end that hangs, and none that is only busy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tandem import AsyncClient
from tandem.protos.errors import TransportLost
from tandem.protos.transport import heartbeat, rpc
from tandem.protos.transport.health import Health
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc

LAST = 4
CHOICE = "tandem.client.front_ends.random.choice"
Pause = Callable[[], AsyncIterator[None]]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed soon."""
    monkeypatch.setattr(heartbeat, "SECONDS", 0.05)


class FrontEnd(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Counts up to LAST, with a pause before each token."""

    def __init__(self, pause: Pause, health: Health | None = None) -> None:
        self.pause, self.health = pause, health
        self.received: list[list[int]] = []

    async def StreamGenerate(
        self, request: api.StreamGenerateRequest, context: Any
    ) -> AsyncIterator[api.StreamGenerateResponse]:
        self.received.append(list(request.received))
        assert request.heartbeats
        for token in range(len(request.received), LAST):
            async for _ in self.pause():
                yield api.StreamGenerateResponse()
            chunk = api.Chunk(token_ids=[token], completion_tokens=token + 1)
            yield api.StreamGenerateResponse(chunk=chunk)
        complete = api.GenerateResponse(token_ids=range(LAST))
        yield api.StreamGenerateResponse(complete=complete)

    async def GetStatus(self, request: api.GetStatusRequest, context: Any) -> api.GetStatusResponse:
        async for _ in self.pause():
            pass
        return api.GetStatusResponse(version="any")

    async def Generate(self, request: api.GenerateRequest, context: Any) -> api.GenerateResponse:
        raise NotImplementedError


class HangingHealth(Health):
    """Does not answer, until it does."""

    def __init__(self) -> None:
        super().__init__()
        self.back = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> Any:
        await self.back.wait()
        return await super().Check(request, context)


async def none() -> AsyncIterator[None]:
    for _ in ():
        yield


async def hang() -> AsyncIterator[None]:
    await asyncio.sleep(60)
    yield


async def wait() -> AsyncIterator[None]:
    """Longer than any silence may be, with heartbeats."""
    for _ in range(10):
        await asyncio.sleep(heartbeat.SECONDS)
        yield


@asynccontextmanager
async def asking(*fronts: FrontEnd, retry_seconds: float = 1.0) -> AsyncIterator[AsyncClient]:
    async with AsyncExitStack() as scope:
        where = [
            await scope.enter_async_context(rpc.serving("127.0.0.1", 0, front, health=front.health))
            for front in fronts
        ]
        yield await scope.enter_async_context(AsyncClient(*where, retry_seconds=retry_seconds))


async def tokens_of(client: AsyncClient, pause: float = 0.0) -> list[int]:
    tokens: list[int] = []
    async with client.stream([1]) as chunks:
        async for chunk in chunks:
            tokens += chunk.token_ids
            await asyncio.sleep(pause)
    return tokens


async def test_a_stream_goes_on_at_another_front_end_when_one_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CHOICE, lambda numbers: numbers[0])
    first, second = FrontEnd(hang), FrontEnd(none)
    async with asking(first, second) as client, asyncio.timeout(5):
        for _ in range(10):
            assert await tokens_of(client) == list(range(LAST))
    assert first.received, "else this has shown nothing"


async def test_all_streams_leave_one_that_hangs_alone_until_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS", 0.1)
    health = HangingHealth()
    first, second = FrontEnd(hang, health), FrontEnd(none)
    async with asking(first, second) as client, asyncio.timeout(30):
        while not first.received:
            await tokens_of(client)
        seen = len(first.received)
        for _ in range(20):
            assert await tokens_of(client) == list(range(LAST))
        async with asyncio.timeout(3):
            assert (await client.status()).version == "any"
        assert len(first.received) == seen
        first.pause = none
        health.back.set()
        while len(first.received) == seen:
            await tokens_of(client)


async def test_after_one_silence_another_is_short_if_the_first_front_end_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "MISSED", 30)
    monkeypatch.setattr(CHOICE, lambda numbers: numbers[0])
    first = FrontEnd(none)

    async def hang_once() -> AsyncIterator[None]:
        first.pause = none
        async for _ in hang():
            yield

    first.pause = hang_once
    second = FrontEnd(hang)
    async with asking(first, second, retry_seconds=60.0) as client, asyncio.timeout(5):
        assert await tokens_of(client) == list(range(LAST))
    assert (len(first.received), len(second.received)) == (2, 1)


async def test_a_front_end_that_hangs_in_the_middle_is_left_with_what_it_said() -> None:
    first = FrontEnd(none)

    async def hang_once() -> AsyncIterator[None]:
        first.pause = none
        async for _ in hang():
            yield

    async def hang_later() -> AsyncIterator[None]:
        first.pause = hang_once
        async for _ in none():
            yield

    first.pause = hang_later
    async with asking(first) as client, asyncio.timeout(5):
        assert await tokens_of(client) == list(range(LAST))
    assert first.received == [[], [0]]


async def test_a_front_end_that_is_busy_is_waited_for() -> None:
    front = FrontEnd(wait)
    async with asking(front) as client, asyncio.timeout(10):
        assert await tokens_of(client) == list(range(LAST))
    assert len(front.received) == 1


async def test_a_caller_that_is_slow_is_no_silence() -> None:
    front = FrontEnd(none)
    async with asking(front) as client, asyncio.timeout(10):
        assert await tokens_of(client, 10 * heartbeat.SECONDS) == list(range(LAST))
    assert len(front.received) == 1


async def test_the_only_front_end_that_hangs_is_an_error_in_the_end() -> None:
    async with asking(FrontEnd(hang)) as client, asyncio.timeout(10):
        with pytest.raises(TransportLost, match="does not answer"):
            await tokens_of(client)


async def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    async with asking(FrontEnd(hang)) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tokens_of(client), heartbeat.SECONDS)
