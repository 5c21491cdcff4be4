"""Send generated requests to every method of every service, and to the HTTP port.

    python -m tandem.benchmarks.fuzz --requests 100000 --seconds 300

The run fails if a process ends, or if an answer has the status INTERNAL, UNKNOWN or 500. The output
shows the memory of each process after the first tenth of the requests and at the end.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import psutil
import typer
from rich.progress import Progress
from rich.table import Table

from tandem import models
from tandem.benchmarks.chaos.system import CELL, DRAFTER, VERIFIER, System, running
from tandem.benchmarks.figures import report
from tandem.benchmarks.fuzz.bodies import VALID
from tandem.benchmarks.fuzz.calls import methods
from tandem.benchmarks.fuzz.targets import HttpPort, Port, Target, with_template
from tandem.protos.errors import TandemError
from tandem.protos.service.process import configure_logging
from tandem.protos.transport import rpc

FAILURES = ("INTERNAL", "UNKNOWN", "500")
WARM_UP_SHARE = 0.1  # share of the requests after which memory is first measured
CONCURRENCY = 8
ROLES = {
    "OrchestratorService": CELL,
    "RegistrationService": CELL,
    "VerifierService": VERIFIER,
    "DrafterService": DRAFTER,
}


@dataclass
class Outcome:
    """The outcome of all requests: how often each target gave each status, and what went wrong."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    # megabytes of each process, after the warm-up and at the end
    memory: dict[str, list[float]] = field(default_factory=dict)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the JSON file: the counts of all statuses, and then the memory of each
        process.
        """
        counts: list[dict[str, Any]] = [
            {"target": name, "status": status, "times": times}
            for (name, status), times in sorted(self.counts.items())
        ]
        return counts + [
            {"process": role, "megabytes_at_work": before, "megabytes_at_the_end": after}
            for role, (before, after) in self.memory.items()
        ]

    def add(self, number: int, name: str, status: str, message: str) -> None:
        """Record the status of a request that has ended."""
        self.counts[name, status] += 1
        if status in FAILURES:
            self.wrong.append(f"request {number}: {name}: {status}: {message[:300]}")


@asynccontextmanager
async def targets(system: System, port: int) -> AsyncIterator[list[Target]]:
    """Yield all targets of a system, with connections that are closed when the context ends."""
    async with AsyncExitStack() as scope:
        found: list[Target] = []
        for method in methods():
            member = system.members[ROLES[method.service]][0] if method.service in ROLES else None
            if member is None:
                continue
            channel = await scope.enter_async_context(rpc.connect(member.address))
            found.append(Port(channel, method))
        http = HttpPort(f"http://127.0.0.1:{port}")
        scope.push_async_callback(http.close)
        found += [http.at(path) for path in VALID]
        yield found


def pids(system: System) -> dict[str, int]:
    """Return the process id of each role."""
    return {member.role: member.pid for some in system.members.values() for member in some}


def memory(system: System) -> dict[str, float]:
    """Return the megabytes of memory of each process."""
    return {role: psutil.Process(pid).memory_info().rss / 1e6 for role, pid in pids(system).items()}


async def ask(
    asked: list[Target], requests: range, seed: int, until: float, outcome: Outcome, done: Any
) -> None:
    """Send the requests through several concurrent callers, each with one request at a time."""
    numbers = iter(requests)

    async def caller() -> None:
        for number in numbers:
            if time.monotonic() > until:
                return
            rng = Random(f"{seed} {number}")
            target = asked[number % len(asked)]
            status, message = await target.ask(rng)
            outcome.add(number, target.name, status, message)
            done()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(caller())


async def whole(
    requests: range, seconds: float, seed: int, target: Path, draft: Path
) -> tuple[Outcome, bool]:
    """Start a system, and send it all requests. Returns the outcome, and whether every process kept
    running. Raises TandemError.
    """
    port, outcome = rpc.free_port("127.0.0.1"), Outcome()
    os.environ["TANDEM__ORCHESTRATOR__HTTP_PORT"] = str(port)
    os.environ["TANDEM__ORCHESTRATOR__REGISTRATION_TOKEN"] = secrets.token_hex(16)
    async with AsyncExitStack() as scope:
        folder = with_template(target, Path(scope.enter_context(TemporaryDirectory())))
        system = await scope.enter_async_context(running(folder, draft, 1, 1, 1))
        asked = await scope.enter_async_context(targets(system, port))
        before, began = pids(system), time.monotonic()
        first = range(requests.start, requests.start + max(1, int(len(requests) * WARM_UP_SHARE)))
        rest = range(first.stop, requests.stop)
        with Progress(transient=True) as progress:
            task = progress.add_task("requests", total=len(requests))
            for part, share in ((first, WARM_UP_SHARE), (rest, 1.0)):
                until = began + seconds * share
                await ask(asked, part, seed, until, outcome, lambda: progress.advance(task))
                for role, used in memory(system).items():
                    outcome.memory.setdefault(role, []).append(used)
        return outcome, pids(system) == before


def main(
    count: Annotated[int, typer.Option("--requests", min=1)] = 100_000,
    first: Annotated[int, typer.Option(help="index of the first request", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="at most", min=1)] = 300,
    seed: Annotated[int, typer.Option()] = 0,
    target: Annotated[Path, typer.Option()] = models.TARGET,
    draft: Annotated[Path, typer.Option()] = models.DRAFT,
    json: report.JsonFile = None,
) -> None:
    """Send generated requests, and print the outcome. Exits with 1 if a request failed or a process
    ended.
    """
    configure_logging("critical")
    try:
        outcome, lived = asyncio.run(
            whole(range(first, first + count), seconds, seed, target, draft)
        )
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    shown = Table("", "status", "times")
    for (name, status), times in sorted(outcome.counts.items()):
        shown.add_row(name, status, str(times))
    for role, (before, after) in outcome.memory.items():
        shown.add_row(
            role, "MB, after a tenth of requests and at the end", f"{before:.0f}, {after:.0f}"
        )
    total = sum(outcome.counts.values())
    ends = "every process lived" if lived else "a process has ended"
    heading = f"{total} requests, {len(outcome.wrong)} wrong; {ends}"
    report.publish(heading, shown, outcome.rows, json)
    for line in outcome.wrong[:20]:
        print(line)
    if outcome.wrong or not lived:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
