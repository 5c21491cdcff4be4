"""A drafter that connects to a front end by itself is used like one that is called."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tandem.benchmarks.peers.checkout import HERE, child
from tandem.drafter_service.registration import registering as register
from tandem.engine.config import ModelServiceConfig
from tandem.models import DRAFT, EMBEDDED, TARGET
from tandem.orchestrator.fleet.clients import DrafterClient
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
from tests.conftest import Services
from tests.services.peer import SESSION
from tests.services.registering import (
    HOST,
    KEY,
    MODEL,
    PROMPT,
    TOKENS,
    Front,
    asked,
    drafting,
    flags,
    front_end,
    linking,
    reached,
    registering,
    run,
)

LOST_SECONDS = 5.0  # three on a machine that does nothing else


@asynccontextmanager
async def process(front: Front, **more: str) -> AsyncIterator[Any]:
    """A drafter in a process of its own, registered."""
    settings = flags(front, model=str(DRAFT), threads="1", log_level="error", **more)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    async with child(HERE, "drafter_service", *words) as drafter:
        yield drafter


async def drafted(*arguments: Any) -> list[int]:
    """The tokens of a run, one of the first in which a draft was accepted: the drafter may connect,
    or be worth it, only after a few.
    """
    async with asyncio.timeout(60):
        while True:
            tokens, accepted = await run(*arguments)
            if accepted:
                return list(tokens)


async def test_a_registered_drafter_gives_the_same_text_and_its_guesses_arrive(
    services: Services,
) -> None:
    target = await services.verifier_client.describe(5)
    direct = await drafted(services.verifier, services.drafter, target)
    async with front_end() as front, drafting(front, register_name="phone"):
        (address,) = await front.has(1)
        assert address.startswith(f"phone@{HOST}:")
        place, metadata = route(address, KEY)
        async with rpc.connect(place) as channel:
            described = await DrafterClient(channel, metadata).describe(5)
        assert described.name == (await services.drafter_client.describe(5)).name
        assert await drafted(services.verifier, address, target) == direct
    assert len(direct) == TOKENS


async def test_two_round_workers_use_one_registered_drafter(services: Services) -> None:
    target = await services.verifier_client.describe(5)
    async with front_end() as front, drafting(front):
        (address,) = await front.has(1)
        runs = (drafted(services.verifier, address, target, seed) for seed in (1, 2))
        first, second = await asyncio.gather(*runs)
    assert first != second
    assert first == (await run(services.verifier, services.drafter, target, 1))[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_drafter_that_dies_or_hangs_is_removed_and_its_links_are_lost(
    number: signal.Signals,
) -> None:
    async with front_end() as front, process(front) as drafter:
        (address,) = await front.has(1)
        async with linking(address) as (link, subscriber):
            drafter.send_signal(number)
            began = time.monotonic()
            await front.has(0, LOST_SECONDS)
            await reached(lambda: not link.connected, LOST_SECONDS)
            assert time.monotonic() - began < LOST_SECONDS
            assert subscriber.reported == ["connected", "lost"]
        if number is signal.SIGSTOP:
            drafter.send_signal(signal.SIGCONT)
            assert await front.has(1) == [address], "it comes back by itself"


async def test_a_drafter_registers_again_at_a_front_end_that_was_restarted() -> None:
    async with AsyncExitStack() as scope:
        async with front_end() as front:
            await scope.enter_async_context(drafting(front, register_name="phone"))
            await front.has(1)
        async with front_end(port=int(front.address.rpartition(":")[2])) as front:
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
            await reached(lambda: len(front.events) == 3)
            assert front.events == [("added", address), ("removed", address), ("added", address)]
            with pytest.raises(Exception, match="a newer drafter is registered as 'by-hand'"):
                async for _ in older:
                    pass
            assert await newer.read() and not newer.done()
        await front.has(0)


async def test_a_drafter_that_stops_is_removed_first_and_finishes_what_runs() -> None:
    async with front_end() as front, process(front) as drafter:
        (address,) = await front.has(1)
        async with linking(address) as (link, subscriber):
            guesses: list[Any] = []
            subscriber.receive = guesses.append  # type: ignore[method-assign]
            context = Context(SESSION, 1, 0, PROMPT)
            link.open(1, Drafting(context, SamplingParams(), DraftShape(12, 4, 32)), subscriber)
            await reached(lambda: guesses)
            drafter.terminate()
            await front.has(0)
            assert link.connected and drafter.returncode is None
            link.close(SESSION, 1)
            assert await asyncio.wait_for(drafter.wait(), 20) == 0
            await reached(lambda: not link.connected)


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
    async with front_end() as front:
        config = ModelServiceConfig(model=DRAFT, **flags(front))
        describe: Any = lambda: MODEL  # noqa: E731
        async with register(config, health, describe, describe):
            await front.has(1)
            health.report("model thread", "it hangs")
            await front.has(0)
            health.report("model thread", None)
            await front.has(1)


async def test_a_front_end_that_is_silent_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS", 0.02)
    calls = []

    class Silent(registration_pb2_grpc.RegistrationServiceServicer):
        async def Register(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            calls.append(await anext(requests))
            yield registration_pb2.RegisterResponse()
            await asyncio.sleep(60)

    async with rpc.serving(HOST, 0, Silent()) as address, drafting(Front(address)):
        await reached(lambda: len(calls) > 1)
        assert calls[0].name == calls[1].name


async def test_a_drafter_that_translates_registers_with_the_targets_tokens() -> None:
    foreign = EMBEDDED.parent / "foreign"
    async with front_end() as front, drafting(front, model=foreign, speaks=TARGET):
        await front.has(1)


async def test_a_worker_that_does_not_read_stops_its_own_call_alone() -> None:
    large = common_pb2.Guess(tokens=[1 << 20] * 50_000)

    made = 0

    async def serve(requests: Any, context: Any) -> Any:
        nonlocal made
        async for request in requests:
            made += bool(request.sent)
            yield drafter_pb2.GuessResponse(guesses=[large] * int(request.sent))

    async with front_end() as front:
        config = ModelServiceConfig(model=DRAFT, **flags(front))
        async with register(config, Health(), lambda: MODEL, serve):
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
