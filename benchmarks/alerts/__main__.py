"""Make each alert fire by its fault, and measure how long it takes until the webhook is called:

    python -m tandem.benchmarks.alerts

Two of each service on the embedded pair run in processes of their own, under load. First nothing is
wrong for a while: no alert may fire, and no process may report that it does not serve. Then one
fault follows another.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from grpc import aio

from tandem import models
from tandem.benchmarks.alerts.watchers import HOST, Webhook, watching
from tandem.benchmarks.peers.checkout import HERE, QUIET, address, child, ignorant
from tandem.benchmarks.peers.delay import State, linked
from tandem.protos.transport import rpc
from tandem.protos.transport.health import is_serving
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc

MOST_SECONDS = 60.0
CHECK_SECONDS = 1.0  # between two questions for the health of each process
ANSWER_SECONDS = 2.0  # in which one answers
LONG = "Once upon a time there was a little girl. " * 30


@dataclass(slots=True)
class System:
    """Processes by role, the link of the first drafter, and a stub of the client API."""

    processes: dict[str, list[Process]] = field(default_factory=dict)
    pages: dict[str, list[str]] = field(default_factory=dict)
    addresses: list[tuple[str, str]] = field(default_factory=list)  # of a role
    link: Any = None
    stub: Any = None

    async def kill(self, role: str, number: int) -> None:
        """At once."""
        self.processes[role][number].kill()
        await self.processes[role][number].wait()

    async def start(self, scope: AsyncExitStack, role: str, *flags: str) -> str:
        """One more process; its address."""
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
        """Ask every process for its health again and again: how often, and how often it did not
        report that it serves.
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
    """Two verifiers, two drafters, one of them behind a link, and a front end."""
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
                system.link = await scope.enter_async_context(linked(places[0]))
                places[0] = f"{HOST}:{system.link.port}"
            given += [f"--{role}", ",".join(places)]
        front = await system.start(
            scope, "orchestrator", *given, "--tokenizer", tokens, "--port", "0", "--no-ray", *flags
        )
        channel = await scope.enter_async_context(rpc.connect(front))
        system.stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        yield system


@asynccontextmanager
async def load(stub: Any, clients: int, **options: Any) -> AsyncIterator[None]:
    """So many clients, each with one request after another, while the scope lasts."""

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
    """One; every third of those with a rule of their own is decoded plainly."""
    asked = api.GenerateRequest(text=text)
    asked.sampling.temperature, asked.sampling.seed = 0.7, number
    asked.stopping.max_new_tokens, asked.stopping.ignore_eos = 60, True
    if rule and number % 3 == 0:
        asked.speculation.num_speculative_tokens = 0
    elif rule:
        asked.speculation.rule = api.AcceptanceRule.ValueType(rule)
    return asked


async def expect(webhook: Webhook, fault: str, *alerts: str) -> bool:
    """Print how long each alert took; whether all came in time."""
    began, all_came = time.monotonic(), True
    for name in set(alerts) & set(webhook.firing):
        print(f"{fault:28} {name:30} was firing already", flush=True)
        all_came = False
    for name in alerts:
        left = began + MOST_SECONDS - time.monotonic()
        came = await webhook.until(name, left)
        seconds = f"{webhook.firing[name] - began:5.1f} s" if came else "not within a minute"
        print(f"{fault:28} {name:30} {seconds}", flush=True)
        all_came &= came
    return all_came


async def lost_and_slow(clean: float, folder: Path) -> bool:
    """Faults of processes, links and load."""
    good = True
    async with (
        running(models.DRAFT, "--max-running", "8") as system,
        watching(folder, system.pages) as webhook,
        load(system.stub, 2),
    ):
        checks, alarms = await system.check(clean)
        print(
            f"{clean:.0f} clean seconds: {sorted(webhook.ever) or 'no alert'}; {alarms} of {checks}"
            " health checks failed",
            flush=True,
        )
        good &= not webhook.ever and not alarms
        await system.link.become(State(round_trip=0.8))
        good &= await expect(webhook, "a drafter far away", "TandemDrafterSlow")
        await system.link.become(State())
        async with load(system.stub, 40, text=LONG):
            names = ("TandemQueueBacklog", "TandemLatencySLOBurn", "TandemKVCacheNearlyFull")
            good &= await expect(webhook, "40 clients, long prompts", *names)
        faults: Sequence[tuple[str, Callable[[], Any], tuple[str, ...]]] = (
            (
                "a verifier is killed",
                lambda: system.kill("verifier", 1),
                ("TandemVerifierDown", "TandemTargetDown"),
            ),
            (
                "a drafter is killed",
                lambda: system.kill("drafter", 1),
                ("TandemDrafterUnavailable",),
            ),
            (
                "both drafters are killed",
                lambda: system.kill("drafter", 0),
                ("TandemFallbackHigh",),
            ),
            (
                "both verifiers are killed",
                lambda: system.kill("verifier", 0),
                ("TandemErrorRatioHigh",),
            ),
        )
        for fault, happen, alerts in faults:
            await happen()
            good &= await expect(webhook, fault, *alerts)
    return good


async def bad_drafts(folder: Path) -> bool:
    """A drafter that was never trained, and a rule with which every draft is verified."""
    async with (
        running(ignorant(models.DRAFT, folder / "draft")) as system,
        watching(folder, system.pages) as webhook,
        load(system.stub, 3, rule=api.AcceptanceRule.Value("ACCEPTANCE_RULE_REJECT")),
    ):
        names = ("TandemAcceptanceCollapsed", "TandemSpeculationNetNegative")
        return await expect(webhook, "an untrained drafter", *names)


def main(
    clean: Annotated[float, typer.Option(help="seconds of load without a fault, at first")] = 30.0,
) -> None:
    """Exit code 1 if an alert fires without a fault, or not within a minute of its own."""

    async def both(folder: Path) -> bool:
        (folder / "one").mkdir()
        (folder / "two").mkdir()
        good = await lost_and_slow(clean, folder / "one")
        return await bad_drafts(folder / "two") and good

    with tempfile.TemporaryDirectory() as folder:
        if not asyncio.run(both(Path(folder))):
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
