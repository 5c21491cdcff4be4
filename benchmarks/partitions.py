"""Measure how long streams wait because of a network partition. In a partition, connections to one
verifier, drafter or front end stop carrying bytes in one direction or in both. Each partition is
measured with a second replica and without one. Without a second replica, streams wait until the
network is healed.

All services run in one process, with proxies between them and a verifier without a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Never

import structlog
import typer
from prometheus_client import CollectorRegistry
from rich.table import Table

from tandem import AsyncClient, models
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.benchmarks.peers import delay
from tandem.benchmarks.peers.delay import State
from tandem.benchmarks.peers.table import TableVerifier, table_model
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.protos.transport import heartbeat, rpc
from tandem.v1 import common_pb2, drafter_pb2, drafter_pb2_grpc

VERIFIER, DRAFTER, FRONT_END = "verifier", "drafter", "front end"
WAYS = {"both": State(hung=True), "to it": State(hung_up=True), "from it": State(hung_down=True)}
STREAMS = 8  # number of streams that begin before the partition, and also during it
STEP = 0.02  # seconds between two steps of the verifier
LOST = "a service is lost"


class SilentDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """A drafter that sends heartbeats, and never proposes."""

    def __init__(self, model: common_pb2.ModelDescription) -> None:
        self._model = model

    async def Propose(
        self, requests: AsyncIterator[drafter_pb2.ProposeRequest], context: Any
    ) -> AsyncIterator[drafter_pb2.ProposeResponse]:
        """Answer each message with a heartbeat, until the caller ends the call."""
        async for request in requests:
            yield drafter_pb2.ProposeResponse(sent=request.sent, model=self._model)

    async def DescribeDrafter(
        self, request: drafter_pb2.DescribeDrafterRequest, context: Any
    ) -> drafter_pb2.DescribeDrafterResponse:
        """Describe the drafter's model, which is the same as the target."""
        return drafter_pb2.DescribeDrafterResponse(model=self._model)


@dataclass(slots=True)
class Reader:
    """One stream. `times` has the time of the request, and then the time of each chunk."""

    times: list[float] = field(default_factory=lambda: [monotonic()])

    async def read(self, client: AsyncClient) -> None:
        """Read the stream until cancelled."""
        async with client.stream([1] * 8, max_new_tokens=1 << 15, ignore_eos=True) as stream:
            async for _ in stream:
                self.times.append(monotonic())

    def gap(self, since: float) -> float:
        """Return the longest period without a chunk, among the periods that ended after `since`."""
        times = [*self.times, monotonic()]
        return max(later - earlier for earlier, later in pairwise(times) if later >= since)


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of one partition. `noticed` is the number of seconds until the cell noticed the
    loss of a service. `gap` is the longest time between two chunks of a stream. If there is no
    second replica, `gap` is instead the time from the healing of the network until every stream has
    a new token.
    """

    where: str
    way: str
    replicas: int
    noticed: float | None
    gap: float


class System:
    """A client of the running system, and the links to the replicas of the partitioned service."""

    def __init__(self, client: AsyncClient, links: list[delay.Link]) -> None:
        self.client = client
        self.links = links
        self.readers: list[Reader] = []


@asynccontextmanager
async def running(where: str, replicas: int, target: Path) -> AsyncIterator[System]:
    """Run all services for the duration of the context. The service `where` has `replicas`
    replicas, each behind a link.
    """
    model, links = table_model(target), list[delay.Link]()
    async with AsyncExitStack() as scope:

        async def at(servicer: object, what: str) -> str:
            return await beyond(await scope.enter_async_context(serve(servicer)), what)

        async def beyond(address: str, what: str) -> str:
            if what != where:
                return address
            links.append(await scope.enter_async_context(delay.linked(address)))
            return f"{delay.HOST}:{links[-1].port}"

        many = {what: replicas if what == where else 1 for what in (VERIFIER, DRAFTER, FRONT_END)}
        verifiers = [
            await at(TableVerifier(model, STEP, 1), VERIFIER) for _ in range(many[VERIFIER])
        ]
        drafters = [await at(SilentDrafter(model), DRAFTER) for _ in range(many[DRAFTER])]
        config = OrchestratorConfig(
            verifier=",".join(verifiers),
            drafter=",".join(drafters),
            tokenizer=target,
            ray=False,
            port=0,
        )
        fronts = [
            await scope.enter_async_context(server.serving(config, CollectorRegistry()))
            for _ in range(many[FRONT_END])
        ]
        addresses = [await beyond(each, FRONT_END) for each in fronts]
        yield System(await scope.enter_async_context(AsyncClient(*addresses)), links)


def serve(servicer: object) -> Any:
    """Serve a gRPC servicer for the duration of the returned context, which yields the address."""
    return rpc.serving("127.0.0.1", 0, servicer)


async def measure(where: str, way: str, replicas: int, target: Path, seconds: float) -> Figures:
    """Measure one partition that lasts `seconds`."""
    losses: list[float] = []

    def note(logger: object, level: str, event: Any) -> Never:
        if event["event"] == LOST:
            losses.append(monotonic())
        raise structlog.DropEvent

    structlog.configure(processors=[note])
    async with running(where, replicas, target) as system, asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            for _ in range(STREAMS):
                system.readers.append(Reader())
                tasks.append(group.create_task(system.readers[-1].read(system.client)))

        async def all_read() -> None:
            counts = [len(each.times) for each in system.readers]
            for each, count in zip(system.readers, counts, strict=True):
                while len(each.times) < count + 3:  # noqa: ASYNC110
                    await asyncio.sleep(STEP / 2)

        begin()
        await all_read()
        losses.clear()
        cut = monotonic()
        await system.links[0].become(WAYS[way])
        begin()
        await asyncio.sleep(seconds)
        if replicas == 1:
            cut_or_healed = monotonic()
            await system.links[0].become(State())
            await all_read()
            gap = max(next(t for t in r.times if t > cut_or_healed) for r in system.readers)
            gap -= cut_or_healed
        else:
            gap = max(each.gap(cut) for each in system.readers)
        for task in tasks:
            task.cancel()
        noticed = min(losses, default=None)
        await system.links[0].become(State())
    return Figures(where, way, replicas, None if noticed is None else noticed - cut, gap)


def table(found: list[Figures]) -> Table:
    """Return the results as a table to print."""
    shown = Table("between", "bytes lost", "replicas", "noticed\ns", "longest gap\ns")
    for each in found:
        other = "client" if each.where == FRONT_END else "cell"
        noticed = "" if each.noticed is None else f"{each.noticed:.2f}"
        since = "" if each.replicas > 1 else " after healing"
        row = f"{other}, {each.where}", each.way, str(each.replicas), noticed
        shown.add_row(*row, f"{each.gap:.2f}{since}")
    return shown


def main(
    target: Annotated[
        Path, typer.Option(help="model directory whose tokenizer is used")
    ] = models.TARGET,
    where: Annotated[str, typer.Option(help="with commas")] = "verifier,drafter,front end",
    ways: Annotated[str, typer.Option("--way", help="with commas")] = "both,to it,from it",
    seconds: Annotated[float, typer.Option(help="seconds of each partition", min=1.0)] = 4.0,
    file: report.JsonFile = None,
) -> None:
    """Measure how long streams wait during a network partition, and after the network is healed."""
    found = [
        asyncio.run(measure(place, way, replicas, target, seconds))
        for place in where.split(",")
        for way in ways.split(",")
        for replicas in (2, 1)
    ]
    beat = f"a heartbeat every {heartbeat.SECONDS} s"
    heading = f"partitions of {seconds:g} s, {2 * STREAMS} streams, {beat}: {described('no model')}"
    report.publish(heading, table(found), [asdict(each) for each in found], file)


if __name__ == "__main__":
    typer.run(main)
