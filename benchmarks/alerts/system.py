"""Run two verifiers, two drafters and a front end on the embedded models, and clients that send
requests to the front end.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc import aio

from tandem import models
from tandem.benchmarks.alerts.watchers import HOST
from tandem.benchmarks.peers.checkout import HERE, QUIET, address, child
from tandem.benchmarks.peers.delay import State, linked
from tandem.protos.transport import rpc
from tandem.protos.transport.health import is_serving
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc

CHECK_SECONDS = 1.0  # seconds between two health checks of a process
ANSWER_SECONDS = 2.0  # timeout of a health check


@dataclass(slots=True)
class System:
    """A running system: processes by role, links to the drafters, and a stub of the client API."""

    processes: dict[str, list[Process]] = field(default_factory=dict)
    pages: dict[str, list[str]] = field(default_factory=dict)
    addresses: list[tuple[str, str]] = field(default_factory=list)  # (role, address) per process
    links: list[Any] = field(default_factory=list)
    stub: Any = None

    @asynccontextmanager
    async def killed(self, role: str, number: int) -> AsyncIterator[None]:
        """Kill the `number` most recently started processes of a role."""
        for it in self.processes[role][-number:]:
            if it.returncode is None:
                it.kill()
                await it.wait()
        yield

    @asynccontextmanager
    async def far(self) -> AsyncIterator[None]:
        """Delay all messages to and from the drafters for the duration of the context."""
        for link in self.links:
            await link.become(State(round_trip=0.8))
        yield
        for link in self.links:
            await link.become(State())

    async def start(self, scope: AsyncExitStack, role: str, *flags: str) -> str:
        """Start another process of a role, and return its address."""
        page = f"{HOST}:{rpc.free_port(HOST)}"
        module = role if role == "orchestrator" else f"{role}_service"
        port = page.rpartition(":")[2]
        it = await scope.enter_async_context(
            child(HERE, module, *flags, *QUIET, "--metrics-port", port)
        )
        self.processes.setdefault(role, []).append(it)
        self.pages.setdefault(role, []).append(page)
        self.addresses.append((role, await address(it)))
        return self.addresses[-1][1]

    async def check(self, seconds: float) -> tuple[int, int]:
        """Check the health of every process every CHECK_SECONDS. Returns the number of health
        checks, and how many of them failed.
        """
        checks = alarms = 0
        async with AsyncExitStack() as scope:
            asked = [
                (
                    await scope.enter_async_context(rpc.connect(place)),
                    f"tandem.v1.{role.capitalize()}Service",
                )
                for role, place in self.addresses
            ]
            until = time.monotonic() + seconds
            while (now := time.monotonic()) < until:
                answers = await asyncio.gather(
                    *(is_serving(channel, name, ANSWER_SECONDS) for channel, name in asked)
                )
                checks, alarms = checks + len(answers), alarms + answers.count(False)
                await asyncio.sleep(max(0.0, now + CHECK_SECONDS - time.monotonic()))
        return checks, alarms


@asynccontextmanager
async def running(draft: Path, *flags: str) -> AsyncIterator[System]:
    """Run two verifiers, two drafters behind delay proxies, and a front end for the duration of the
    context.
    """
    system, tokens = System(), str(models.TARGET)
    async with AsyncExitStack() as scope:
        given = []
        for role, model, more in (
            ("verifier", tokens, ("--kv-bytes", "7MiB")),
            ("drafter", str(draft), ()),
        ):
            words = ("--model", model, "--threads", "1", *more)
            places = [await system.start(scope, role, *words) for _ in range(2)]
            if role == "drafter":
                system.links = [await scope.enter_async_context(linked(each)) for each in places]
                places = [f"{HOST}:{link.port}" for link in system.links]
            given += [f"--{role}", ",".join(places)]
        front = await system.start(
            scope, "orchestrator", *given, "--tokenizer", tokens, "--port", "0", "--no-ray", *flags
        )
        channel = await scope.enter_async_context(rpc.connect(front))
        system.stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        yield system


@asynccontextmanager
async def load(stub: Any, clients: int, **options: Any) -> AsyncIterator[None]:
    """Run `clients` concurrent clients for the duration of the context. Each client sends one
    request after another.
    """

    async def client(number: int) -> None:
        while True:
            with suppress(aio.AioRpcError):
                await stub.Generate(request(number, **options))
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(client(number)) for number in range(clients)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def request(number: int, text: str = "Once upon a time", rule: int = 0) -> api.GenerateRequest:
    """Build a request. If an acceptance `rule` is given, every third request is decoded without
    drafts, and all other requests use the rule.
    """
    asked = api.GenerateRequest(text=text)
    asked.sampling.temperature, asked.sampling.seed = 0.7, number
    asked.stopping.max_new_tokens, asked.stopping.ignore_eos = 60, True
    if rule and number % 3 == 0:
        asked.speculation.num_speculative_tokens = 0
    elif rule:
        asked.speculation.rule = api.AcceptanceRule.ValueType(rule)
    return asked
