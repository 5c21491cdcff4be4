"""A drafter that connects to a front end by itself is used like one that is called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from tandem.benchmarks.peers.delay import State
from tandem.benchmarks.peers.delay import linked as proxied
from tandem.models import EMBEDDED, TARGET
from tandem.orchestrator.fleet.registration import route
from tandem.protos.streams import Drafting
from tandem.protos.transport import heartbeat, rpc
from tandem.protos.transport.health import Health
from tandem.protos.types import Context, DraftShape, SamplingParams
from tandem.v1 import (
    common_pb2,
    drafter_pb2,
    drafter_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)
from tests.services.peer import HASTY, PATIENT, SESSION
from tests.services.registering import (
    HOST,
    KEY,
    Front,
    asked,
    drafting,
    front_end,
    linking,
    really_drafting,
    registering,
)
from tests.waiting import until


@pytest.mark.parametrize("state", [State(refusing=True), State(hung=True)], ids=["dies", "hangs"])
async def test_a_drafter_that_dies_or_hangs_is_removed_and_comes_back_by_itself(
    state: State,
) -> None:
    async with (
        front_end() as front,
        proxied(front.address) as proxy,
        drafting(front, register_at=f"{HOST}:{proxy.port}"),
    ):
        (address,) = await front.has(1)
        async with linking(address) as (link, subscriber):
            await proxy.become(state)
            if state.hung:
                heartbeat.MISSED = HASTY
            await front.has(0)
            await until(lambda: not link.connected)
            assert subscriber.reported == ["connected", "lost"]
        heartbeat.MISSED = PATIENT
        await proxy.become(State())
        assert await front.has(1) == [address]


async def test_a_drafter_registers_again_at_a_front_end_that_was_restarted() -> None:
    port = rpc.free_port(HOST)
    async with AsyncExitStack() as scope:
        async with front_end(port=port) as front:
            await scope.enter_async_context(drafting(front, register_name="phone"))
            await front.has(1)
        async with front_end(port=port) as front:
            (address,) = await front.has(1)
            async with linking(address) as (link, _):
                assert link.connected
            await scope.aclose()
            await front.has(0)


async def test_a_drafter_registers_at_every_front_end() -> None:
    async with front_end() as first, front_end() as second:
        both = f"{first.address},{second.address}"
        async with drafting(first, register_at=both):
            await first.has(1)
            await second.has(1)


async def test_the_newest_drafter_of_a_name_replaces_the_older() -> None:
    async with front_end() as front, registering(front) as older:
        (address,) = await front.has(1)
        async with registering(front) as newer:
            await until(lambda: len(front.events) == 3)
            assert front.events == [("added", address), ("removed", address), ("added", address)]
            with pytest.raises(Exception, match="a newer drafter is registered as 'by-hand'"):
                async for _ in older:
                    pass
            assert await newer.read() and not newer.done()
        await front.has(0)


async def test_a_drafter_that_stops_is_removed_first_and_finishes_what_runs() -> None:
    stop = asyncio.Event()

    async def live(front: Front) -> None:
        async with really_drafting(front):
            await stop.wait()

    async with front_end() as front:
        drafter = asyncio.create_task(live(front))
        (address,) = await front.has(1)
        async with linking(address) as (link, subscriber):
            guesses: list[Any] = []
            subscriber.receive = guesses.append  # type: ignore[method-assign]
            context = Context(SESSION, 1, 0, (400, 500, 600, 700))
            link.open(1, Drafting(context, SamplingParams(), DraftShape(12, 4, 32)), subscriber)
            await until(lambda: guesses)
            stop.set()
            await front.has(0)
            assert link.connected and not drafter.done()
            link.close(SESSION, 1)
            await drafter
            await until(lambda: not link.connected)


async def test_only_workers_with_the_key_reach_a_registered_drafter() -> None:
    async with front_end() as front, drafting(front):
        (address,) = await front.has(1)
        for known, key, problem in (
            (address, "another", "not the key"),
            (f"nobody{address}", KEY, "no drafter is registered as 'nobody"),
        ):
            place, metadata = route(known, key)
            async with rpc.connect(place) as channel:
                stub: Any = drafter_pb2_grpc.DrafterServiceStub(channel)
                describe = drafter_pb2.DescribeDrafterRequest()
                with pytest.raises(Exception, match=problem):
                    await stub.DescribeDrafter(describe, metadata=metadata)
                with pytest.raises(Exception, match=problem):
                    await asked(partial(stub.Guess, metadata=metadata), drafter_pb2.GuessRequest())


async def test_a_drafter_is_registered_only_while_its_model_serves() -> None:
    health = Health()
    async with front_end() as front, drafting(front, health=health):
        await front.has(1)
        health.report("model thread", "it hangs")
        await front.has(0)
        health.report("model thread", None)
        await front.has(1)


async def test_a_front_end_that_is_silent_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS", 0.02)
    monkeypatch.setattr(heartbeat, "MISSED", 5)
    calls = []

    class Silent(registration_pb2_grpc.RegistrationServiceServicer):
        async def Register(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            calls.append(await anext(requests))
            yield registration_pb2.RegisterResponse()
            await asyncio.Event().wait()

    async with rpc.serving(HOST, 0, Silent()) as address, drafting(Front(address)):
        await until(lambda: len(calls) > 1)
        assert calls[0].name == calls[1].name


async def test_a_drafter_that_translates_registers_with_the_targets_tokens() -> None:
    foreign = EMBEDDED.parent / "foreign"
    async with front_end() as front, really_drafting(front, model=foreign, speaks=TARGET):
        await front.has(1)


async def test_a_worker_that_does_not_read_stops_its_own_call_alone() -> None:
    large = common_pb2.Guess(tokens=[1 << 20] * 50_000)
    made = 0

    async def serve(requests: Any, peer: str) -> Any:
        nonlocal made
        async for request in requests:
            made += bool(request.sent)
            yield drafter_pb2.GuessResponse(guesses=[large] * int(request.sent))

    async with front_end() as front, drafting(front, serve):
        place, metadata = route(*await front.has(1), KEY)
        async with rpc.connect(place) as channel:
            stub: Any = drafter_pb2_grpc.DrafterServiceStub(channel)
            stalled, other = (stub.Guess(metadata=metadata) for _ in range(2))
            for _ in range(20):
                await stalled.write(drafter_pb2.GuessRequest(sent=10))
            for _ in range(100):
                await other.write(drafter_pb2.GuessRequest())
                assert not (await other.read()).guesses
            assert made < 20 and len(front.registered) == 1
            received = [await stalled.read() for _ in range(20)]
            assert [len(each.guesses) for each in received] == [10] * 20
