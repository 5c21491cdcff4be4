"""Cells on Ray Serve are deployed from the file that ships, scaled by their load, replaced after a
loss and by a rolling update; clients see one stream throughout.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tandem import AsyncClient
from tandem.benchmarks.peers.checkout import HERE, address, child
from tandem.protos.errors import Unusable
from tandem.protos.transport import rpc
from tandem.protos.transport.health import is_serving
from tests.ray_nodes import HEAD, environment, node
from tests.served import Pair
from tests.waiting import LIMIT, until

pytest.importorskip("ray.serve", reason="the extra [cells] is not installed")
pytestmark = pytest.mark.long("starts a Ray Serve and its cells")

HOST, SERVICE = "127.0.0.1", "tandem.v1.OrchestratorService"
REQUEST = {"temperature": 0.7, "seed": 3, "max_new_tokens": 200, "ignore_eos": True}
PLACES, STREAMS, PORTS = 4, 4, 4
SCALING = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 0, "downscale_delay_s": 600}
SCALING |= {"metrics_interval_s": 1, "look_back_period_s": 2}


SHIPPED = HERE / "deploy" / "kustomize" / "overlays" / "kuberay" / "cells.yaml"


def free_ports() -> range:
    """Return as many consecutive free ports as there may be cells, old and new."""
    while True:
        first = rpc.free_port(HOST)
        with suppress(Unusable):
            return range(first, rpc.free_port(HOST, first + PORTS - 1) + 1)


def config(verifier: str, target: Path, port: int, **settings: Any) -> str:
    """Write the file that ships, adapted to this machine."""
    content = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    (application,) = content["applications"]
    here = {"verifier": verifier, "drafter": "", "tokenizer": str(target), "host": HOST}
    application["args"] |= here | {"port": port, "metrics_port": 0, "max_running": PLACES}
    application["args"] |= settings
    (cell,) = application["deployments"]
    cell["autoscaling_config"] |= SCALING
    del cell["max_replicas_per_node"]
    return yaml.safe_dump(content)


async def deploy(file: Path, cluster: str, variables: dict[str, str]) -> None:
    """Deploy as an operator does."""
    serve = [sys.executable, "-P", "-m", "ray.serve.scripts", "run", "--non-blocking"]
    process = await asyncio.create_subprocess_exec(
        *serve, f"--address={cluster}", str(file), env=variables, stdout=PIPE, stderr=STDOUT
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()


def cells(ports: range) -> dict[int, int]:
    """Return the processes that listen on these ports."""
    found = psutil.net_connections("tcp")
    listening = (each for each in found if each.status == psutil.CONN_LISTEN)
    return {each.laddr.port: each.pid or 0 for each in listening if each.laddr.port in ports}


async def serving(ports: range, count: int, but: Collection[int] = ()) -> dict[int, int]:
    """Wait until this many cells serve and the processes in `but` are gone; return the cells."""

    async def found() -> dict[int, int]:
        these = cells(ports)
        right = len(these) == count and not set(these.values()) & set(but)
        return these if right and all(await asyncio.gather(*map(ready, these))) else {}

    return await until(found, f"{count} cells serve")


async def ready(port: int) -> bool:
    """Return whether the cell at a port can serve."""
    async with rpc.connect(f"{HOST}:{port}") as channel:
        return await is_serving(channel, SERVICE, LIMIT)


@asynccontextmanager
async def streaming(client: AsyncClient, right: str) -> AsyncIterator[None]:
    """Run endless streams while the scope lasts, each checked for the right text."""

    async def stream() -> None:
        while True:
            assert (await client.generate("Once", **REQUEST)).text == right

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream()) for _ in range(STREAMS)]
        yield
        for task in tasks:
            task.cancel()


async def test_cells_scale_and_are_replaced_while_clients_stream(
    embedded: Pair, tmp_path: Path
) -> None:
    # puts every socket on loopback
    ray = environment() | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    file, ports = tmp_path / "cells.yaml", free_ports()
    cluster = f"{HOST}:{rpc.free_port(HOST)}"
    model = "--model", str(embedded.target), "--threads", "1"
    async with AsyncExitStack() as scope:
        verifier = await scope.enter_async_context(child(HERE, "verifier_service", *model))
        flags = *HEAD, f"--node-ip-address={HOST}", f"--port={cluster.rpartition(':')[2]}"
        await scope.enter_async_context(node(ray, *flags))
        served = await address(verifier), embedded.target, ports[0]
        file.write_text(config(*served))
        await deploy(file, cluster, ray)
        await serving(ports, 1)
        addresses = (f"{HOST}:{port}" for port in ports)
        client = await scope.enter_async_context(AsyncClient(*addresses))
        right = (await client.generate("Once", **REQUEST)).text
        async with streaming(client, right):
            found = await serving(ports, 2)  # scaled up
            lost = found[ports[0]]
            os.kill(lost, signal.SIGKILL)
            found = await serving(ports, 2, (lost,))
            file.write_text(config(*served, max_waiting=100))
            await deploy(file, cluster, ray)
            await serving(ports, 2, found.values())  # all cells are new
