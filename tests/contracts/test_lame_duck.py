"""A port that is closed behind a load balancer, and a client that only has gRPC's defaults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from operator import ge
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.protos.transport import rpc
from tests.waiting import until

CALLERS = 8
SECONDS = 1.0  # of the lame duck: connections are renewed after half of it


class Balancer:
    """Forwards new connections to `address`, as a Kubernetes Service does; old ones stay."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.moved = asyncio.Event()  # there is a connection to another address than the first

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        first = self.address

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            address = self.address
            host, _, port = address.rpartition(":")
            back, there = await asyncio.open_connection(host, int(port))
            if address != first:
                self.moved.set()
            await asyncio.gather(forward(reader, there), forward(back, writer))

        async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while content := await reader.read(1 << 16):
            writer.write(content)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def test_no_call_is_lost_when_a_port_is_closed() -> None:
    """gRPC cancels calls that are on their way when it stops a server."""
    async with AsyncExitStack() as scope, AsyncExitStack() as other:
        first = AsyncExitStack()

        async def leave(seconds: float) -> None:
            """Until no caller waits for an answer of the first server."""
            balancer.address = second
            await balancer.moved.wait()
            enough = [count + 2 for count in counts]
            await until(lambda: all(map(ge, counts, enough)))

        old: Any = rpc.serving(
            "127.0.0.1", 0, object(), leave=leave, lame_duck_seconds=SECONDS, drained=nothing
        )
        balancer = Balancer(await first.enter_async_context(old))
        second = await other.enter_async_context(rpc.serving("127.0.0.1", 0, object()))
        where = await scope.enter_async_context(balancer.running())
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
