"""Ray Serve runs the cells of `tandem up`; the loss of a Ray process is mended, and changes no
text.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psutil
import pytest

from tandem import AsyncClient
from tandem.benchmarks.peers.checkout import HERE, child
from tandem.orchestrator.cli import launch
from tandem.orchestrator.cli.plan import Plan
from tandem.protos.service.process import announcement
from tests.ray_nodes import processes
from tests.ray_processes import CELL, CONTROL_PLANE, NODE, ray_processes
from tests.served import Pair
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.long("starts a Ray for each test and kills its processes")

REQUEST = {"temperature": 0.7, "seed": 3, "max_new_tokens": 60, "ignore_eos": True}
STREAMS = 3


@asynccontextmanager
async def up() -> AsyncIterator[AsyncClient]:
    """Run `tandem up`, with a patient client."""
    async with (
        launch.up(Plan(port=0, ray=True)) as tandem,
        AsyncClient(tandem.addresses["orchestrator"], retry_seconds=LIMIT) as client,
    ):
        yield client


def orchestrator() -> int:
    """Return the process of `tandem up` that has started Ray, or 0 if there is none now."""
    for each in psutil.Process().children():
        with suppress(psutil.Error):
            if "tandem.orchestrator" in each.cmdline():
                return each.pid
    return 0


class Streams:
    """Clients that send request after request without retries; any error fails the test."""

    def __init__(self, client: AsyncClient, right: str) -> None:
        self.client, self.right = client, right
        self.finished = 0

    async def stream(self) -> None:
        while True:
            assert (await self.client.generate("Once", **REQUEST)).text == self.right
            self.finished += 1

    async def go_on(self) -> None:
        """Wait until more requests have finished than were running."""
        goal = self.finished + 2 * STREAMS
        await until(lambda: self.finished >= goal, "streams go on")


def kill(orchestrator: int, name: bytes) -> list[int]:
    """Kill the processes of a name; return which these were."""
    gone = ray_processes(orchestrator, name)
    assert gone, name
    for process in gone:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return gone


async def test_streams_go_on_when_one_process_of_ray_after_the_other_is_killed() -> None:
    async with up() as client:
        streams = Streams(client, (await client.generate("Once", **REQUEST)).text)

        async def serving(but: list[int]) -> None:
            """Wait until a cell serves that is none of these."""
            await until(lambda: set(ray_processes(orchestrator(), CELL)) - set(but))
            await streams.go_on()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(streams.stream()) for _ in range(STREAMS)]
            await streams.go_on()
            await serving(kill(orchestrator(), CELL))
            for part in (CONTROL_PLANE, NODE):
                now, cells = orchestrator(), ray_processes(orchestrator(), CELL)
                kill(now, part)
                await streams.go_on()
                assert ray_processes(now, CELL) == cells, "the cells that there were"
                await serving(kill(now, CELL))  # the process can only be replaced by `tandem up`
                assert orchestrator() != now
            for task in tasks:
                task.cancel()
        last = orchestrator()
    await until(lambda: not processes(last), "no process is left")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_an_orchestrator_that_ends_while_its_cells_start_leaves_no_process(
    embedded: Pair, number: signal.Signals
) -> None:
    """The cells still wait for their verifier."""
    flags = "--verifier", "127.0.0.1:1", "--tokenizer", str(embedded.target), "--port", "0"
    async with child(HERE, "orchestrator", *flags) as orchestrator:
        own = orchestrator.pid
        await until(lambda: ray_processes(own, CELL))
        orchestrator.send_signal(number)
        await orchestrator.wait()
        await until(lambda: not processes(own), "no process is left")


@pytest.mark.parametrize("part", [CONTROL_PLANE, NODE])
async def test_an_orchestrator_whose_ray_is_lost_while_its_cells_start_ends(
    embedded: Pair, part: bytes
) -> None:
    """The cells still wait for their verifier. A supervisor starts the orchestrator again."""
    flags = "--verifier", "127.0.0.1:1", "--tokenizer", str(embedded.target), "--port", "0"
    async with child(HERE, "orchestrator", *flags) as orchestrator:
        own = orchestrator.pid
        await until(lambda: ray_processes(own, CELL))
        kill(own, part)
        async with asyncio.timeout(LIMIT):
            assert await orchestrator.wait() == 1
        await until(lambda: not processes(own), "no process is left")


async def test_a_cell_that_cannot_start_is_one_line_with_the_reason(embedded: Pair) -> None:
    flags = "--verifier", "127.0.0.1:1", "--tokenizer", str(embedded.target), "--port", "0"
    async with child(HERE, "orchestrator", *flags, "--start-seconds", "0.1") as orchestrator:
        assert orchestrator.stdout
        printed = (await orchestrator.stdout.read()).splitlines()
        assert await orchestrator.wait() == 1
    (failed,) = [
        commit for commit in map(announcement, printed) if commit and commit["event"] == "failed"
    ]
    assert failed["problem"] == "no verifier answers at 127.0.0.1:1"
