"""A drafter that connects to a front end by itself is used like one that the front end connects
to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tandem.benchmarks.peers.delay import State
from tandem.benchmarks.peers.delay import linked as proxied
from tandem.models import EMBEDDED, TARGET
from tandem.protos.streams import Drafting
from tandem.protos.transport import heartbeat, rpc
from tandem.protos.transport.health import Health
from tandem.protos.types import Context, DraftShape, SamplingParams
from tandem.v1 import registration_pb2, registration_pb2_grpc
from tests.services.peer import HASTY, PATIENT, SESSION
from tests.services.registering import (
    HOST,
    Front,
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
        async with linking(front, address) as (link, subscriber):
            await proxy.become(state)
            if state.hung:
                heartbeat.MAX_MISSED = HASTY
            await front.has(0)
            await until(lambda: not link.connected)
            assert subscriber.reported == ["connected", "lost"]
        heartbeat.MAX_MISSED = PATIENT
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
            async with linking(front, address) as (link, _):
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
            assert not newer.done()
        await front.has(0)


async def test_a_drafter_that_stops_is_removed_first_and_finishes_what_runs() -> None:
    stop = asyncio.Event()

    async def live(front: Front) -> None:
        async with really_drafting(front):
            await stop.wait()

    async with front_end() as front:
        drafter = asyncio.create_task(live(front))
        (address,) = await front.has(1)
        async with linking(front, address) as (link, subscriber):
            proposals: list[Any] = []
            subscriber.receive = proposals.append  # type: ignore[method-assign]
            context = Context(SESSION, 1, 0, (400, 500, 600, 700))
            link.open(1, Drafting(context, SamplingParams(), DraftShape(12, 4, 32)), subscriber)
            await until(lambda: proposals)
            stop.set()
            await front.has(0)
            assert link.connected and not drafter.done()
            link.close(SESSION, 1)
            await drafter
            await until(lambda: not link.connected)


async def test_a_drafter_is_registered_only_while_its_model_serves() -> None:
    health = Health()
    async with front_end() as front, drafting(front, health=health):
        async with linking(front, *await front.has(1)) as (link, _):
            health.report("model thread", "it hangs")
            await front.has(0)
            assert link.connected, "what is open may end"
            health.report("model thread", None)
            await front.has(1)
            health.report("model thread", "it hangs")
            await front.has(0)
        health.report("model thread", None)
        await front.has(1)


async def test_a_front_end_that_is_silent_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS", 0.02)
    monkeypatch.setattr(heartbeat, "MAX_MISSED", 5)
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
