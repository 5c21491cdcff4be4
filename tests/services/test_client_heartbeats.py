"""A client leaves a front end that hangs, but not one that is only busy."""

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
from tests.services.peer import HASTY, PATIENT, patient
from tests.waiting import LIMIT, until

LAST = 4
WHOLE = list(range(LAST))
CHOICE = "tandem.client.front_ends.random.choice"
Pause = Callable[[], AsyncIterator[None]]


class FrontEnd(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """A front end that counts up to LAST, with a pause before each token."""

    def __init__(self, pause: Pause, health: Health | None = None) -> None:
        self.pause, self.health = pause, health
        self.received: list[list[int]] = []
        self.statuses = 0

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
        self.statuses += 1
        return api.GetStatusResponse(version="any")

    async def Generate(self, request: api.GenerateRequest, context: Any) -> api.GenerateResponse:
        raise NotImplementedError


class HangingHealth(Health):
    """A health service that hangs until it is released."""

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
    """Make a front end hang until the client has noticed."""
    heartbeat.MAX_MISSED = HASTY
    await asyncio.Event().wait()
    yield


@asynccontextmanager
async def asking(*fronts: FrontEnd, retry_seconds: float = LIMIT) -> AsyncIterator[AsyncClient]:
    """Return a client of these front ends."""
    async with AsyncExitStack() as scope:
        where = [
            await scope.enter_async_context(rpc.serving("127.0.0.1", 0, front, health=front.health))
            for front in fronts
        ]
        yield await scope.enter_async_context(client_of(*where, retry_seconds=retry_seconds))


@asynccontextmanager
async def client_of(*addresses: str, retry_seconds: float = LIMIT) -> AsyncIterator[AsyncClient]:
    """Return an impatient client, which becomes patient once it has noticed a front end that
    hangs.
    """
    with patient():
        async with AsyncClient(*addresses, retry_seconds=retry_seconds) as client:
            fell_silent = client.front_ends.fell_silent

            def noticed(number: int) -> None:
                heartbeat.MAX_MISSED = PATIENT
                fell_silent(number)

            client.front_ends.fell_silent = noticed  # type: ignore[method-assign]
            yield client


async def tokens_of(client: AsyncClient) -> list[int]:
    async with client.stream([1]) as chunks:
        return [token async for chunk in chunks for token in chunk.token_ids]


@pytest.fixture
def first_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the client choose the first front end that answers."""
    monkeypatch.setattr(CHOICE, lambda numbers: numbers[0])


async def test_silence_is_counted_in_heartbeats_and_anything_that_arrives_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beats, arrived, arrivals = 0, 0, (3, 9)

    class Clock:
        @staticmethod
        async def sleep(seconds: float) -> None:
            nonlocal beats, arrived
            assert seconds == heartbeat.SECONDS
            beats += 1
            arrived += beats in arrivals

    monkeypatch.setattr(heartbeat, "asyncio", Clock)
    monkeypatch.setattr(heartbeat, "MAX_MISSED", 7)
    await heartbeat.until_silent(lambda: arrived)
    assert beats == arrivals[-1] + heartbeat.MAX_MISSED


async def test_all_streams_leave_one_that_hangs_alone_until_it_answers(first_chosen: None) -> None:
    health = HangingHealth()
    first, second = FrontEnd(hang, health), FrontEnd(none)
    async with asking(first, second) as client:
        assert await tokens_of(client) == WHOLE
        assert (first.received, len(second.received)) == ([[]], 1)
        for _ in range(5):
            assert await tokens_of(client) == WHOLE
        assert (await client.status()).version == "any"
        assert (len(first.received), first.statuses) == (1, 0)
        first.pause = none
        health.back.set()
        await until(lambda: not client.front_ends.silent)
        assert await tokens_of(client) == WHOLE
        assert first.received == [[], []]


async def test_after_one_silence_another_is_short_if_the_first_front_end_answers_again(
    first_chosen: None,
) -> None:
    first = FrontEnd(none)

    async def hang_once() -> AsyncIterator[None]:
        first.pause = none
        async for _ in hang():
            yield

    async def hang_for_ever() -> AsyncIterator[None]:
        """The client's patience would not end either."""
        await asyncio.Event().wait()
        yield

    first.pause = hang_once
    second = FrontEnd(hang_for_ever)
    async with asking(first, second) as client:
        assert await tokens_of(client) == WHOLE
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
    async with asking(first) as client:
        assert await tokens_of(client) == WHOLE
    assert first.received == [[], [0]]


async def test_neither_a_busy_front_end_nor_a_slow_caller_is_a_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[object] = []

    async def watch(received: Callable[[], object], **_: Any) -> None:
        await until(received)
        heard.append(received)
        await asyncio.Event().wait()

    async def busy() -> AsyncIterator[None]:
        """Yield a heartbeat, and no token before the client heard it."""
        yield
        await until(lambda: heard)

    monkeypatch.setattr(heartbeat, "until_silent", watch)
    front = FrontEnd(busy)
    async with asking(front) as client, client.stream([1]) as chunks:
        async for _ in chunks:
            (received,) = heard
            assert received() != received(), "the caller has the token and asks for no other"  # type: ignore[operator]
    assert len(front.received) == 1


async def test_the_only_front_end_that_hangs_is_an_error_in_the_end() -> None:
    async with asking(FrontEnd(hang), retry_seconds=0.2) as client:
        with pytest.raises(TransportLost, match="does not answer"):
            await tokens_of(client)


async def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    front = FrontEnd(hang)
    async with asking(front) as client:
        task = asyncio.create_task(tokens_of(client))
        await until(lambda: front.received)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
