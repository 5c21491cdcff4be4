"""Ray places round workers, and none of its processes can break a stream or be missed for long."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from tandem import AsyncClient
from tandem.benchmarks.chaos.ray_processes import CONTROL_PLANE, NODE, WORKER, ray_processes
from tandem.benchmarks.peers.checkout import HERE, address, child
from tandem.benchmarks.peers.round_workers import connected
from tandem.orchestrator.workers import driver
from tests.conftest import Pair
from tests.ray_nodes import processes
from tests.waiting import until

pytestmark = pytest.mark.long("starts a Ray for each test and kills its processes")

REQUEST = {"temperature": 0.7, "seed": 3, "max_new_tokens": 60, "ignore_eos": True}
DRIVER = driver.__name__.encode()


@asynccontextmanager
async def front_end(pair: Pair) -> AsyncIterator[tuple[int, AsyncClient]]:
    """One with two round workers on a private Ray: its process, which must end well, and a client
    of it.
    """
    target = str(pair.target)
    async with child(HERE, "verifier_service", "--model", target, "--threads", "1") as verifier:
        flags = "--verifier", await address(verifier), "--tokenizer", target, "--port", "0"
        async with child(HERE, "orchestrator", *flags, "--workers", "2") as orchestrator:
            async with AsyncClient(await address(orchestrator), retry_seconds=1.0) as client:
                yield orchestrator.pid, client
            assert orchestrator.returncode is None
            orchestrator.terminate()
            assert await orchestrator.wait() == 0


def victims(orchestrator: int, name: bytes) -> list[int]:
    """Processes of its Ray."""
    if name != DRIVER:
        return ray_processes(orchestrator, name)
    children = psutil.Process(orchestrator).children()
    return [each.pid for each in children if DRIVER.decode() in each.cmdline()]


def renewed(orchestrator: int, name: bytes, gone: list[int]) -> bool:
    """Whether another process than those that are gone has the name."""
    return bool(set(victims(orchestrator, name)) - set(gone))


def session_of_its_own(orchestrator: int) -> None:
    """Linux shares cores between sessions: a Ray that started took the front end's."""
    (started,) = victims(orchestrator, DRIVER)
    for name in (CONTROL_PLANE, NODE, WORKER):
        found = ray_processes(orchestrator, name)
        assert found, name
        assert {os.getsid(process) for process in found} == {started}
    assert os.getsid(orchestrator) != started


async def test_streams_go_on_when_one_process_of_ray_after_the_other_is_killed(
    embedded: Pair,
) -> None:
    async with front_end(embedded) as (orchestrator, client):
        right = (await client.generate("Once", **REQUEST)).text
        over, finished = False, 0

        async def stream() -> None:
            nonlocal finished
            while not over:
                assert (await client.generate("Once", **REQUEST)).text == right
                finished += 1

        async with asyncio.TaskGroup() as streams:
            for _ in range(3):
                streams.create_task(stream())
            await connected(client, 2)
            session_of_its_own(orchestrator)
            for name, comes_back in (
                *((WORKER, True), (CONTROL_PLANE, False), (WORKER, False)),
                *((NODE, True), (DRIVER, True)),  # on another Ray
            ):
                gone, goal = victims(orchestrator, name), finished + 6
                for victim in gone:
                    with suppress(ProcessLookupError):  # a Ray that lost a part may end by itself
                        os.kill(victim, signal.SIGKILL)
                await until(lambda goal=goal: finished >= goal, name.decode())
                if comes_back:
                    await until(partial(renewed, orchestrator, name, gone))
                    await connected(client, 2)
            over = True
        assert (await client.generate("Once", **REQUEST)).text == right


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_front_end_that_ends_while_ray_starts_leaves_no_process(
    embedded: Pair, number: signal.Signals
) -> None:
    """It still waits for its verifier."""
    flags = "--verifier", "127.0.0.1:1", "--tokenizer", str(embedded.target), "--port", "0"
    async with child(HERE, "orchestrator", *flags) as orchestrator:
        own = orchestrator.pid
        await until(lambda: ray_processes(own, CONTROL_PLANE))
        (started,) = victims(own, DRIVER)
        orchestrator.send_signal(number)
        await orchestrator.wait()
        assert number == signal.SIGKILL or not psutil.pid_exists(started)
        await until(lambda: not processes(own) and not processes(started))


async def test_a_ray_that_does_not_start_is_a_warning_and_a_worker_in_reserve_serves(
    embedded: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / ("x" * 100)  # Ray's sockets have shorter paths
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    said = ""
    async with front_end(embedded) as (_, client):
        assert (await client.generate("Once", **REQUEST)).text

        def refused() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return "Ray did not start" in said

        await until(refused)
        workers = (await client.status()).round_workers
        assert [each.connected for each in workers] == [False, False, True]
    assert "AF_UNIX" in said
