"""Measure what admitted streams notice while far more is requested than can be served:

    python -m tandem.benchmarks.overload

First, requests fill all request slots, and the benchmark measures how many requests are served per
second. Next, ten times as many requests arrive at random times. Prompts that are far too large
arrive too, and clients that do not read their streams try to occupy all slots. The results are the
times until a request is refused for lack of a slot and until a large prompt is refused, and the
gaps between the chunks of running streams, before and during the overload.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import psutil
import typer
from grpc import aio
from rich.table import Table

from tandem import AsyncClient, models
from tandem.benchmarks.chaos.system import CELL, running
from tandem.benchmarks.figures import report
from tandem.benchmarks.peers.prompts import story_prompts
from tandem.benchmarks.serve.summary import percentile
from tandem.orchestrator.requests.request import CLIENT_KEY
from tandem.protos.errors import Busy, InvalidRequest, TandemError, Unusable
from tandem.protos.service.tasks import background
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc

PROMPT = story_prompts()[0]
LARGE_PROMPT = "x" * (512 << 10)
LARGE_PROMPT_SECONDS = 0.2  # average seconds between two large prompts
TOKENS = 64
STEADY_TIMEOUT_SECONDS = 60.0  # timeout of a request of the steady clients
UNREAD_PAUSE = 1.0  # seconds from the end of an unread stream to the start of the next
SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 64), ("grpc.http2.bdp_probe", 0))


@dataclass(slots=True)
class Seen:
    """What clients saw in one period: the gaps and the times until refusals, in seconds, and how
    requests ended.
    """

    gaps: list[float] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)

    async def ask(self, client: AsyncClient, prompt: str) -> None:
        """Request one stream, and read its chunks as fast as they arrive."""
        began = last = monotonic()
        try:
            async with client.stream(prompt, max_new_tokens=TOKENS, ignore_eos=True) as stream:
                async for chunk in stream:
                    now = monotonic()
                    if chunk.completion_tokens > len(chunk.token_ids):
                        self.gaps.append(now - last)
                    last = now
            self.ends["finished"] += 1
        except TandemError as end:
            if isinstance(end, Busy | InvalidRequest):
                self.refusals.append(monotonic() - began)
            self.ends[type(end).__name__] += 1


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of the benchmark. Times are in seconds, memory is in MB, and `ends` counts
    requests by how they ended.
    """

    places: int
    served_per_second: float
    offered_per_second: float
    refused_p50: float
    refused_p99: float
    large_refused_p99: float
    gap_p99_before: float
    gap_p99: float
    memory_before: float
    memory: float
    ends: dict[str, int]

    @property
    def gap_ratio(self) -> float:
        """The 99th percentile of gaps between chunks during the overload, divided by the 99th
        percentile before the overload.
        """
        return self.gap_p99 / (self.gap_p99_before or 1.0)


async def arrive(per_second: float, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Call `act` at random times, on average `per_second` times per second, even while earlier
    calls run.
    """
    due = monotonic()
    async with asyncio.TaskGroup() as group:
        while True:
            due += random.expovariate(per_second)
            await asyncio.sleep(due - monotonic())
            group.create_task(act())


async def unread(address: str) -> None:
    """Open streams, one after another, and stop reading each after its first chunk. An unread
    stream occupies its request slot until the server ends it, because the stream is longer than the
    buffers between server and client.
    """
    request = api.GenerateRequest(text=PROMPT)
    request.stopping.max_new_tokens, request.stopping.ignore_eos = 400, True
    async with aio.insecure_channel(address, options=SMALL_WINDOW) as channel:
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        while True:
            call = stub.StreamGenerate(
                api.StreamGenerateRequest(request=request), metadata=((CLIENT_KEY, "mute"),)
            )
            with suppress(aio.AioRpcError):
                await call.read()
                await call.code()
            await asyncio.sleep(UNREAD_PAUSE)


def set_limits(places: int) -> None:
    """Set the front end's limits by environment variables. A single client may use all request
    slots.
    """
    limits = {"RUNNING": places, "RUNNING_PER_CLIENT": places, "WAITING": 2 * places}
    for name, limit in limits.items():
        os.environ[f"TANDEM__ORCHESTRATOR__MAX_{name}"] = str(limit)


async def measure(target: Path, draft: Path, places: int, times: float, seconds: float) -> Figures:
    """Measure refusals, gaps and memory before and during the overload. Raises TandemError."""
    set_limits(places)
    async with AsyncExitStack() as scope:
        system = await scope.enter_async_context(running(target, draft, 1, 1, 1))
        front = psutil.Process(system.members[CELL][0].pid)

        async def client(name: str, retry_seconds: float = 0.0) -> AsyncClient:
            own = AsyncClient(*system.addresses, retry_seconds=retry_seconds)
            own.metadata = ((CLIENT_KEY, name),)
            return await scope.enter_async_context(own)

        patient, hasty = await client("steady", STEADY_TIMEOUT_SECONDS), await client("crowd")
        sender = await client("large")
        before, during, crowd, large = Seen(), Seen(), Seen(), Seen()
        steady = Seen()  # the streams that run before and during the overload

        async def follow() -> None:
            while True:
                await steady.ask(patient, PROMPT)

        async with background(*(follow() for _ in range(places))):
            await asyncio.sleep(seconds / 4)
            steady.gaps, steady.ends = before.gaps, before.ends
            await asyncio.sleep(seconds)
            rate, memory = before.ends["finished"] / seconds, front.memory_info().rss / 1e6
            if not rate:
                raise Unusable(f"no request was served in {seconds:g} s")
            steady.gaps, steady.ends = during.gaps, during.ends
            async with background(
                arrive(times * rate, lambda: crowd.ask(hasty, PROMPT)),
                arrive(1 / LARGE_PROMPT_SECONDS, lambda: large.ask(sender, LARGE_PROMPT)),
                *(unread(system.addresses[0]) for _ in range(places)),
            ):
                await asyncio.sleep(seconds)
                grown = front.memory_info().rss / 1e6
    ends = during.ends + crowd.ends + large.ends
    return Figures(
        places,
        rate,
        crowd.ends.total() / seconds,
        percentile(crowd.refusals, 50),
        percentile(crowd.refusals, 99),
        percentile(large.refusals, 99),
        percentile(before.gaps, 99),
        percentile(during.gaps + crowd.gaps, 99),
        memory,
        grown,
        dict(ends),
    )


def table(found: Figures) -> Table:
    """Return the results as a table to print."""
    shown = Table("", "", box=None)
    for name, value in (
        ("requests served per second at maximum concurrency", f"{found.served_per_second:.1f}"),
        ("requests sent per second during the overload", f"{found.offered_per_second:.1f}"),
        ("ended", ", ".join(f"{count} {end}" for end, count in sorted(found.ends.items()))),
        ("time until a request is refused, median", f"{1e3 * found.refused_p50:.1f} ms"),
        ("time until a request is refused, p99", f"{1e3 * found.refused_p99:.1f} ms"),
        ("time until a 512 KiB prompt is refused, p99", f"{1e3 * found.large_refused_p99:.1f} ms"),
        ("gaps between chunks before the overload, p99", f"{1e3 * found.gap_p99_before:.1f} ms"),
        ("gaps between chunks during the overload, p99", f"{1e3 * found.gap_p99:.1f} ms"),
        ("ratio", f"{found.gap_ratio:.2f}"),
        (
            "memory of the front end, before and then during",
            f"{found.memory_before:.0f} MB, then {found.memory:.0f} MB",
        ),
    ):
        shown.add_row(name, value)
    return shown


def main(
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory of the drafter")] = models.DRAFT,
    places: Annotated[int, typer.Option(help="maximum number of concurrent requests", min=1)] = 8,
    times: Annotated[
        float, typer.Option(help="rate of requests, as a multiple of the served rate", min=0.1)
    ] = 10.0,
    seconds: Annotated[
        float, typer.Option(help="seconds of each period, before and during the overload", min=4)
    ] = 30.0,
    file: report.JsonFile = None,
) -> None:
    """Measure refusal times, and gaps between chunks of admitted streams, under overload."""
    try:
        found = asyncio.run(measure(target, draft, places, times, seconds))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    heading = report.title(target, draft, f"{times:g} times what {places} places can serve")
    report.publish(heading, table(found), [asdict(found) | {"gap_ratio": found.gap_ratio}], file)


if __name__ == "__main__":
    typer.run(main)
