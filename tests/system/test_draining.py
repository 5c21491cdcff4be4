"""Services that are asked to stop, as real processes: they finish what runs, and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tandem.benchmarks.peers.checkout import HERE, child
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc
from tests.conftest import Pair
from tests.system.test_health import (
    MODELS,
    NOT_SERVING,
    SERVING,
    VERIFIER,
    Watched,
    orchestrator,
    verify,
    watched,
)
from tests.system.test_same_text import ask

ROLES = ("verifier", "orchestrator")


@asynccontextmanager
async def both(pair: Pair) -> AsyncIterator[dict[str, Watched]]:
    """A verifier, and an orchestrator that is connected to it."""
    flags = ("--model", str(pair.target), *MODELS)
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(child(HERE, "verifier_service", *flags))
        verifier = await stack.enter_async_context(watched(process, VERIFIER))
        front = await stack.enter_async_context(
            orchestrator(verifier.address, pair.target, "--no-ray")
        )
        yield {"verifier": verifier, "orchestrator": front}


def stream(front: Watched) -> Any:
    """A request that takes a while."""
    request = ask("Once upon a time there was", temperature=0.7, seed=1, tokens=450)
    request.stopping.ignore_eos = True
    stub = orchestrator_pb2_grpc.OrchestratorServiceStub(front.channel)
    return stub.StreamGenerate(api.StreamGenerateRequest(request=request))


@asynccontextmanager
async def draining(role: str, pair: Pair) -> AsyncIterator[tuple[Watched, Any]]:
    """A service that was asked to stop, and a stream that had begun before."""
    async with both(pair) as services:
        it, running = services[role], aiter(stream(services["orchestrator"]))
        await anext(running)
        it.process.terminate()
        yield it, running


async def stopped_soon(it: Watched) -> None:
    """It ends well, and has not waited for anything."""
    began = time.monotonic()
    assert await asyncio.wait_for(it.process.wait(), 20) == 0
    assert time.monotonic() - began < 3.0


async def one_more(role: str, it: Watched) -> None:
    """Something new for a service."""
    if role == "verifier":
        return await verify(it.channel)
    async for _ in stream(it):
        break


@pytest.mark.parametrize("role", ROLES)
async def test_a_draining_service_is_reachable_and_not_serving(role: str, embedded: Pair) -> None:
    async with draining(role, embedded) as (it, running):
        await it.becomes(NOT_SERVING, 1.0)
        assert await it.status("") == SERVING
        with pytest.raises(Exception, match="stopping"):
            await one_more(role, it)
        assert [event async for event in running][-1].HasField("complete")


@pytest.mark.parametrize("role", ROLES)
async def test_a_drained_service_stops_as_soon_as_its_last_session_ended(
    role: str, embedded: Pair
) -> None:
    async with draining(role, embedded) as (it, running):
        assert [event async for event in running][-1].HasField("complete")
        await stopped_soon(it)


@pytest.mark.parametrize("role", ROLES)
async def test_a_second_signal_stops_at_once(role: str, embedded: Pair) -> None:
    async with draining(role, embedded) as (it, _):
        await it.becomes(NOT_SERVING, 1.0)
        it.process.terminate()
        await stopped_soon(it)
