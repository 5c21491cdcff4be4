"""What `grpc.health.v1` says of real processes: it is the truth, within two seconds."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem import AsyncClient
from tandem.benchmarks.chaos.ray_processes import WORKER, ray_processes
from tandem.benchmarks.peers.checkout import HERE, address, child
from tandem.benchmarks.peers.round_workers import connected
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.protos.transport import rpc
from tandem.protos.types import Context, Draft, SamplingParams
from tests.conftest import Pair

VERIFIER, ORCHESTRATOR = "tandem.v1.VerifierService", "tandem.v1.OrchestratorService"
SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)
SECONDS = 2.0
MODELS = ("--threads", "1", "--log-level", "error")
PLANTED = """
import os, runpy, sys, time
from tandem.engine.schedule.scheduler import ModelThread
step = ModelThread._step
def planted(thread):
    if os.path.exists({marker!r}):
        {fault}
    step(thread)
ModelThread._step = planted
sys.argv = ["verifier", *{flags!r}]
runpy.run_module("tandem.verifier_service", run_name="__main__")
"""


class Watched:
    """A process, and the health of one of its services."""

    def __init__(self, process: Process, address: str, channel: aio.Channel, service: str) -> None:
        self.process, self.address, self.service = process, address, service
        self.channel, self._stub = channel, health_pb2_grpc.HealthStub(channel)

    async def status(self, service: str | None = None) -> int:
        """What it says now."""
        name = self.service if service is None else service
        check: Any = self._stub.Check
        answer = await check(health_pb2.HealthCheckRequest(service=name), timeout=SECONDS)
        return int(answer.status)

    async def becomes(self, status: int, seconds: float) -> float:
        """Seconds until it says so."""
        began = time.monotonic()
        while await self.status() != status:
            assert time.monotonic() - began < seconds, f"for {seconds} s"
            await asyncio.sleep(0.02)
        return time.monotonic() - began


@asynccontextmanager
async def watched(process: Process, service: str) -> AsyncIterator[Watched]:
    where = await address(process)
    async with rpc.connect(where) as channel:
        yield Watched(process, where, channel, service)


@asynccontextmanager
async def orchestrator(verifier: str, target: Path, *flags: str) -> AsyncIterator[Watched]:
    """One whose drafter is away."""
    drafter = f"127.0.0.1:{rpc.free_port('127.0.0.1')}"
    where = ("--verifier", verifier, "--drafter", drafter, "--tokenizer", str(target))
    more = ("--port", "0", "--start-seconds", "5", "--log-level", "error", *flags)
    async with (
        child(HERE, "orchestrator", *where, *more) as process,
        watched(process, ORCHESTRATOR) as it,
    ):
        yield it


@asynccontextmanager
async def planted(target: Path, marker: Path, fault: str) -> AsyncIterator[Watched]:
    """A verifier whose model thread meets a fault when the marker exists."""
    program = PLANTED.format(
        marker=str(marker), fault=fault, flags=["--model", str(target), *MODELS]
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=PIPE)
    try:
        async with watched(process, VERIFIER) as it:
            yield it
    finally:
        with suppress(ProcessLookupError):  # a test has killed it
            process.kill()
        await process.wait()


async def verify(channel: aio.Channel) -> None:
    """A step of a verifier."""
    context = Context(secrets.token_bytes(16), 1, 0, (5, 6, 7))
    await VerifierClient(channel).verify(context, Draft((), ()), SamplingParams())


Fault = Callable[[Watched, Watched, Path], Awaitable[None]]


async def killed(verifier: Watched, front: Watched, marker: Path) -> None:
    verifier.process.kill()


async def stopped(verifier: Watched, front: Watched, marker: Path) -> None:
    verifier.process.send_signal(signal.SIGSTOP)


async def met(verifier: Watched, front: Watched, marker: Path) -> None:
    """The fault that was planted."""
    await verify(verifier.channel)
    marker.touch()  # noqa: ASYNC240
    step = asyncio.create_task(verify(verifier.channel))
    step.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.sleep(0)


CASES: dict[str, tuple[Fault, str, str]] = {
    "verifier killed": (killed, ORCHESTRATOR, "pass"),
    "verifier stopped": (stopped, ORCHESTRATOR, "pass"),
    "model thread hung": (met, VERIFIER, "time.sleep(3600)"),
    "model thread dead": (met, VERIFIER, "sys.exit()"),
}


@pytest.mark.parametrize("case", CASES)
async def test_health_is_not_serving_within_two_seconds_when(
    case: str, embedded: Pair, tmp_path: Path
) -> None:
    strike, struck, fault = CASES[case]
    marker = tmp_path / "marker"
    async with AsyncExitStack() as stack:
        verifier = await stack.enter_async_context(planted(embedded.target, marker, fault))
        front = await stack.enter_async_context(
            orchestrator(verifier.address, embedded.target, "--no-ray")
        )
        it = verifier if struck == VERIFIER else front
        assert await it.status() == SERVING
        await strike(verifier, front, marker)
        assert await it.becomes(NOT_SERVING, 2 * SECONDS) < SECONDS
        assert await it.status("") == SERVING, "the process lives"
        if struck == VERIFIER:
            await front.becomes(NOT_SERVING, SECONDS)
        if case == "verifier stopped":
            verifier.process.send_signal(signal.SIGCONT)
            await front.becomes(SERVING, SECONDS)


@pytest.mark.parametrize("strike", [signal.SIGKILL, signal.SIGSTOP])
async def test_without_its_round_worker_the_orchestrator_serves_on(
    strike: signal.Signals, embedded: Pair, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        without = planted(embedded.target, tmp_path / "no", "pass")
        verifier = await stack.enter_async_context(without)
        front = await stack.enter_async_context(orchestrator(verifier.address, embedded.target))
        client = await stack.enter_async_context(AsyncClient(front.address))
        greedy: dict[str, Any] = {"temperature": 0, "max_new_tokens": 200}
        right = await client.generate("Once upon a time", **greedy)
        await connected(client, 1)
        (worker,) = ray_processes(front.process.pid, WORKER)
        began, text = time.monotonic(), ""
        async with client.stream("Once upon a time", **greedy) as chunks:
            async for chunk in chunks:
                if not text:
                    os.kill(worker, strike)
                text += chunk.text
        assert text == right.text
        assert time.monotonic() - began < 10
        assert await front.status() == SERVING
