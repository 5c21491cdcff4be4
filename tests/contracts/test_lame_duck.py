"""A port that closes behind a load balancer, and a client with gRPC's default settings."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from operator import ge
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.benchmarks.peers.balancer import balanced
from tandem.protos.transport import rpc
from tests.waiting import until

CALLERS = 8
SECONDS = 1.0  # lame-duck time; clients renew connections after half of it


async def test_no_call_is_lost_when_a_port_is_closed() -> None:
    """When gRPC stops a server, it cancels calls that are under way."""
    async with AsyncExitStack() as scope, AsyncExitStack() as other:
        first = AsyncExitStack()

        async def leave(seconds: float) -> None:
            """Wait until no caller waits for an answer of the first server."""
            places.append(second)
            await moved.wait()
            enough = [count + 2 for count in counts]
            await until(lambda: all(map(ge, counts, enough)))

        old: Any = rpc.serving(
            "127.0.0.1", 0, object(), leave=leave, lame_duck_seconds=SECONDS, drained=nothing
        )
        places, moved = [await first.enter_async_context(old)], asyncio.Event()
        second = await other.enter_async_context(rpc.serving("127.0.0.1", 0, object()))

        def newest() -> str:
            if len(places) > 1:
                moved.set()
            return places[-1]

        where = await scope.enter_async_context(balanced(newest))
        channel = await scope.enter_async_context(aio.insecure_channel(where))
        health: Any = health_pb2_grpc.HealthStub(channel)
        over, counts = asyncio.Event(), [0] * CALLERS

        async def call(number: int) -> None:
            while not over.is_set():
                await health.Check(health_pb2.HealthCheckRequest())
                counts[number] += 1

        calls = asyncio.gather(*map(call, range(CALLERS)))
        await health.Check(health_pb2.HealthCheckRequest())
        await first.aclose()
        over.set()
        await calls
        assert all(counts)


async def nothing() -> None:
    """Nothing runs."""
