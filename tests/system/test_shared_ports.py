"""Two cells share a client port: both get connections, and a killed cell costs no later
connection.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
from grpc import aio

from tandem import AsyncClient
from tandem.benchmarks.peers.checkout import HERE, address, child
from tandem.protos.transport import rpc
from tandem.protos.transport.health import is_serving
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc
from tests.served import Services
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.long("starts two cells as processes")

HOST, SERVICE = "127.0.0.1", "tandem.v1.OrchestratorService"
OWN = [("grpc.use_local_subchannel_pool", 1)]  # gives each channel its own connection
LATER = 24  # number of connections after the loss
REQUEST: dict[str, Any] = {"temperature": 0.7, "seed": 11, "max_new_tokens": 80}


@dataclass(frozen=True, slots=True)
class Cells:
    """Processes that share a gRPC port and an HTTP port."""

    port: int
    http_port: int
    processes: list[Process]

    def connected(self, port: int) -> set[int]:
        """Return the processes that have connections on a port."""
        found = psutil.net_connections("tcp")
        open_ = [each for each in found if each.status == psutil.CONN_ESTABLISHED]
        ours = {process.pid for process in self.processes}
        return ours & {each.pid for each in open_ if each.laddr.port == port}


@asynccontextmanager
async def cells(services: Services) -> AsyncIterator[Cells]:
    port, http_port = rpc.free_port(HOST), rpc.free_port(HOST)
    models = f"--verifier={services.verifier}", f"--drafter={services.drafter}"
    flags = "--no-ray", "--share-ports", f"--tokenizer={services.pair.target}", *models
    flags += f"--port={port}", f"--http-port={http_port}", "--log-level=error"
    async with AsyncExitStack() as scope:
        starting = (child(HERE, "orchestrator", *flags) for _ in range(2))
        processes = [await scope.enter_async_context(each) for each in starting]
        found = [await address(process) for process in processes]
        assert found == [f"{HOST}:{port}"] * 2
        yield Cells(port, http_port, processes)


async def answered(scope: AsyncExitStack, cells: Cells) -> None:
    """Send a request on a new connection of each kind; the gRPC connection stays open."""
    channel = await scope.enter_async_context(aio.insecure_channel(f"{HOST}:{cells.port}", OWN))
    assert await is_serving(channel, SERVICE, LIMIT)
    stub: Any = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
    (model,) = (await stub.GetStatus(api.GetStatusRequest(), timeout=LIMIT)).models
    assert model.name == "target" and len(model.verifiers) == 1

    def read() -> bytes:
        with urlopen(f"http://{HOST}:{cells.http_port}/v1/models", timeout=LIMIT) as page:
            return bytes(page.read())

    assert b'"target"' in await asyncio.to_thread(read)


async def test_both_cells_are_reached_and_the_loss_of_one_costs_no_later_connection(
    services: Services,
) -> None:
    async with AsyncExitStack() as scope:
        shared = await scope.enter_async_context(cells(services))
        client = await scope.enter_async_context(AsyncClient(f"{HOST}:{shared.port}"))
        right = (await client.generate("Once there was a shared port", **REQUEST)).text
        (its,) = shared.connected(shared.port)

        async def both() -> bool:
            await answered(scope, shared)
            return len(shared.connected(shared.port)) == 2

        await until(both, "both cells have connections")
        lost = next(process for process in shared.processes if process.pid == its)
        text = ""
        async for chunk in client.stream("Once there was a shared port", **REQUEST):
            if not text:
                lost.kill()
            text += chunk.text
        assert text == right, "the client connects to the other cell"
        await lost.wait()
        for _ in range(LATER):
            await answered(scope, shared)
