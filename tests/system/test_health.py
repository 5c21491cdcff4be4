"""What `grpc.health.v1` reports about services is true, even if a process no longer answers."""

from __future__ import annotations

import asyncio
import signal
import threading
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from tandem.benchmarks.peers.checkout import HERE, address, child
from tandem.engine.config import ModelServiceConfig
from tandem.engine.schedule.scheduler import ModelThread
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.protos.errors import TandemError
from tandem.protos.transport import rpc
from tandem.protos.types import Context, Draft, SamplingParams
from tandem.verifier_service import service as verifier_service
from tests.served import Pair
from tests.waiting import LIMIT, until

VERIFIER, ORCHESTRATOR = "tandem.v1.VerifierService", "tandem.v1.OrchestratorService"
SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)


class Watched:
    """The health of a service, and its process if it has its own."""

    def __init__(self, channel: aio.Channel, service: str, process: Process | None = None) -> None:
        self.channel, self.service, self._process = channel, service, process
        self._stub = health_pb2_grpc.HealthStub(channel)

    @property
    def process(self) -> Process:
        assert self._process
        return self._process

    async def status(self, service: str | None = None) -> int:
        """Return the status that is reported now."""
        name = self.service if service is None else service
        check: Any = self._stub.Check
        answer = await check(health_pb2.HealthCheckRequest(service=name), timeout=LIMIT)
        return int(answer.status)

    async def becomes(self, status: int) -> None:
        """Wait until this status is reported."""

        async def said() -> bool:
            return await self.status() == status

        await until(said, f"health {status}")


@asynccontextmanager
async def verifier_process(target: Path) -> AsyncIterator[tuple[str, Watched]]:
    """Start a verifier in its own process; yields it and its address."""
    flags = ("--model", str(target), "--threads", "1")
    async with child(HERE, "verifier_service", *flags) as process:
        where = await address(process)
        async with rpc.connect(where) as channel:
            yield where, Watched(channel, VERIFIER, process)


async def verify(channel: aio.Channel, session: bytes = bytes(16)) -> None:
    """Have a verifier take a step."""
    context = Context(session, 1, 0, (5, 6, 7))
    await VerifierClient(channel).verify(context, Draft((), ()), SamplingParams())


@pytest.mark.long("starts a verifier as a process, stops and kills it")
async def test_a_front_end_serves_when_its_verifier_does(embedded: Pair) -> None:
    """The verifier is stopped, continued and killed; the drafter is absent all the time."""
    async with AsyncExitStack() as scope:
        where, verifier = await scope.enter_async_context(verifier_process(embedded.target))
        config = OrchestratorConfig(
            verifier=where, drafter="127.0.0.1:1", tokenizer=embedded.target, port=0, ray=False
        )
        place = await scope.enter_async_context(server.serving(config, CollectorRegistry()))
        front = Watched(await scope.enter_async_context(rpc.connect(place)), ORCHESTRATOR)
        await front.becomes(SERVING)
        for number, status in (
            (signal.SIGSTOP, NOT_SERVING),
            (signal.SIGCONT, SERVING),
            (signal.SIGKILL, NOT_SERVING),
        ):
            verifier.process.send_signal(number)
            await front.becomes(status)
            assert await front.status("") == SERVING, "the process lives"


async def test_a_verifier_whose_model_thread_hangs_does_not_serve(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, broken, mended = ModelThread._step, threading.Event(), threading.Event()
    begin, begun = ModelThread.__enter__, []  # models of other tests go on

    def noted(thread: ModelThread) -> ModelThread:
        begun.append(thread)
        return begin(thread)

    def planted(thread: ModelThread) -> None:
        if broken.is_set() and thread in begun:
            mended.wait()
        step(thread)

    monkeypatch.setattr(ModelThread, "_step", planted)
    monkeypatch.setattr(ModelThread, "__enter__", noted)
    config = ModelServiceConfig(model=embedded.target, threads=1)
    async with (
        verifier_service.serving(config, CollectorRegistry()) as where,
        rpc.connect(where) as channel,
    ):
        verifier = Watched(channel, VERIFIER)
        await verify(channel)
        assert await verifier.status() == SERVING
        broken.set()
        stuck = asyncio.create_task(verify(channel, b"another session "))
        await verifier.becomes(NOT_SERVING)
        assert await verifier.status("") == SERVING, "the process lives"
        mended.set()
        stuck.cancel()
        with suppress(asyncio.CancelledError, TandemError):
            await stuck
