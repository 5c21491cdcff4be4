"""Cells on two Ray nodes, each in its own network: clients notice no fault of a node or of the link
between the nodes.
"""

from __future__ import annotations

import asyncio
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tandem import AsyncClient
from tandem.benchmarks.peers.checkout import HERE, address, python
from tandem.protos.transport import rpc
from tandem.protos.transport.health import is_serving
from tests.ray_nodes import HEAD, Link, environment, kill, node, second_machine
from tests.served import Pair
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.long("starts two Ray nodes, one in a network namespace")

REQUEST = {"temperature": 0.7, "seed": 3, "max_new_tokens": 120, "ignore_eos": True}
STREAMS = 4


@pytest.fixture
def link() -> Iterator[Link]:
    try:
        scope = second_machine()
        found = scope.__enter__()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no second network here: {error}")
    try:
        yield found
    finally:
        scope.__exit__(None, None, None)


@dataclass
class Streams:
    """Clients that send request after request without retries; any error fails the test."""

    client: AsyncClient
    right: str = ""
    finished: int = 0
    over: bool = field(default=False)

    async def stream(self) -> None:
        while not self.over:
            assert (await self.client.generate("Once", **REQUEST)).text == self.right
            self.finished += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.right = (await self.client.generate("Once", **REQUEST)).text
        async with asyncio.TaskGroup() as group:
            for _ in range(STREAMS):
                group.create_task(self.stream())
            yield
            self.over = True

    async def go_on(self) -> None:
        """Wait until more requests have finished than were running."""
        goal = self.finished + 2 * STREAMS
        await until(lambda: self.finished >= goal, "streams go on")


async def started(
    scope: AsyncExitStack, environment: dict[str, str], module: str, *flags: str
) -> tuple[Process, str]:
    """Start a service that other machines can reach; return its address."""
    command = "-P", "-m", f"tandem.{module}", *flags, "--insecure"
    process = await scope.enter_async_context(python(*command, folder=HERE, **environment))
    return process, await address(process)


async def serving(place: str) -> None:
    """Wait until the cell at an address can answer requests."""

    async def ready() -> bool:
        async with rpc.connect(place) as channel:
            return await is_serving(channel, "tandem.v1.OrchestratorService", 1.0)

    await until(ready, place)


async def test_streams_go_on_when_the_link_to_a_node_is_cut_and_when_the_node_is_lost(
    embedded: Pair, link: Link
) -> None:
    target, ray = str(embedded.target), environment()
    head = f"{link.here}:{rpc.free_port(link.here)}"
    port = rpc.free_port(link.here)
    places = f"{link.here}:{port}", f"{link.there}:{port}"
    async with AsyncExitStack() as scope:
        flags = *HEAD, f"--node-ip-address={link.here}", f"--port={head.rpartition(':')[2]}"
        await scope.enter_async_context(node(ray, *flags, cpus=1))
        joined = f"--address={head}", f"--node-ip-address={link.there}"
        there = await scope.enter_async_context(node(ray, *joined, cpus=1, enter=link.enter))
        flags = "--model", target, "--threads", "1", "--host", link.here
        _, place = await started(scope, ray, "verifier_service", *flags)
        flags = "--verifier", place, "--tokenizer", target, "--port", str(port)
        flags += "--ray-address", head, "--cells", "2", "--host", "0.0.0.0"
        launcher, _ = await started(scope, ray, "orchestrator", *flags)
        for each in places:
            await serving(each)
        client = await scope.enter_async_context(AsyncClient(*places, retry_seconds=LIMIT))
        streams = Streams(client)
        async with streams.running():
            await streams.go_on()
            link.set("down")
            await streams.go_on()
            link.set("up")  # Ray may have declared the node lost meanwhile, and may end it
            await streams.go_on()
            kill(there.pid)
            await streams.go_on()
            await scope.enter_async_context(node(ray, *joined, cpus=1, enter=link.enter))
            await serving(places[1])  # Serve has started another cell
            await streams.go_on()
            launcher.kill()
            await launcher.wait()
            await streams.go_on()
