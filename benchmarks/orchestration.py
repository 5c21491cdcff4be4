"""Measure the overhead of the orchestrator. The orchestrator streams tokens from a simulated
verifier, which runs one step at every tick of a clock.

A stream cannot produce tokens faster than the verifier runs its steps. The time from a tick to the
arrival of its chunk is the delay that gRPC, cell and client have added. The client runs on the same
machine, so it uses processor time too.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from time import monotonic
from typing import Annotated, Any

import typer
from rich.table import Table

from tandem import AsyncClient, models
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.benchmarks.peers.checkout import HERE, address, child
from tandem.benchmarks.peers.table import HEAD, token_at
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.protos.errors import TandemError, Unusable
from tandem.protos.service.tasks import background

QUIET = ("--log-level", "error", "--metrics-port", "0")
START_SECONDS = 60.0
PARTS = ("verifier", "cell", "client")


@dataclass(slots=True)
class Reader:
    """A client that reads one stream. `behind` has the seconds from the verifier's tick to the
    arrival of each chunk.
    """

    number: int
    step: float
    behind: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    async def read(self, client: AsyncClient) -> None:
        """Read the stream until cancelled."""
        prompt = [self.number % 256, self.number // 256, 1, 1]
        options: dict[str, Any] = {"max_new_tokens": 1 << 15, "ignore_eos": True, "seed": 0}
        began, chunks = 0.0, 0
        async with client.stream(prompt, **options) as stream:
            async for chunk in stream:
                now = monotonic()
                if not chunks:
                    began = now - now % self.step
                self.behind.append(now - began - chunks * self.step)
                chunks += 1
                self.tokens += chunk.token_ids

    def check(self, vocabulary: int) -> None:
        """Raise Unusable if a token differs from the one that the simulated verifier emits at its
        position.
        """
        head = (self.number % 256, self.number // 256, 1, 1)
        for place, token in enumerate(self.tokens):
            if token != token_at(head, HEAD + place, vocabulary):
                raise Unusable(f"stream {self.number} has a wrong token at position {place}")


@dataclass(frozen=True, slots=True)
class Figures:
    """The results for `streams` concurrent streams of a cell: delays in seconds, and processor time
    in microseconds per step.
    """

    streams: int
    steps_per_second: float
    of_ideal: float
    median_behind: float
    p99_behind: float
    processor_per_step: dict[str, float]
    bytes_per_stream: float


class System:
    """The processes of the measurement: the verifier, the cell, and this process, the client."""

    def __init__(self, verifier: Process, cell: Process) -> None:
        self._verifier = verifier
        self._cell = cell

    def processor_seconds(self) -> list[float]:
        """Return the processor seconds that verifier, cell and client have used so far."""
        own = os.times()
        return [_seconds(self._verifier.pid), _seconds(self._cell.pid), own.user + own.system]

    def bytes(self) -> int:
        """Return the resident memory of the cell in bytes."""
        pages = int(Path(f"/proc/{self._cell.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def _seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def until(done: Callable[[], bool], missing: str) -> None:
    """Poll until `done` returns true. Raises Unusable with the text `missing` if this takes more
    than START_SECONDS.
    """
    try:
        async with asyncio.timeout(START_SECONDS):
            while not done():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise Unusable(f"{missing} after {START_SECONDS:.0f} s") from None


async def measure(target: Path, streams: int, step: float, seconds: float) -> Figures:
    """Start verifier, cell and client, wait until all streams have begun, and measure for `seconds`
    seconds. Raises Unusable.
    """
    async with AsyncExitStack() as scope:
        table = ("--tokenizer", str(target), "--step", str(step))
        verifier = await scope.enter_async_context(child(HERE, "benchmarks.peers.table", *table))
        flags = ("--verifier", await address(verifier), "--tokenizer", str(target), "--port", "0")
        limits = ("--max-running", str(streams))
        orchestrator = await scope.enter_async_context(
            child(HERE, "orchestrator", *flags, *limits, "--no-ray", *QUIET)
        )
        client = await scope.enter_async_context(AsyncClient(await address(orchestrator)))
        system = System(verifier, orchestrator)
        empty = system.bytes()
        readers = [Reader(number, step) for number in range(streams)]
        async with background(*(reader.read(client) for reader in readers)):
            await until(
                lambda: all(reader.tokens for reader in readers),
                f"{streams} streams with --step {step} are too many: some have no token",
            )
            before, spent = [len(each.behind) for each in readers], system.processor_seconds()
            began = monotonic()
            await asyncio.sleep(seconds)
            took, grown = monotonic() - began, system.bytes() - empty
            spent = [b - a for a, b in zip(spent, system.processor_seconds(), strict=True)]
            behind = [
                late
                for each, start in zip(readers, before, strict=True)
                for late in each.behind[start:]
            ]
    vocabulary = load_tokenizer(target).get_vocab_size()
    for reader in readers:
        reader.check(vocabulary)
    cuts = quantiles(behind, n=100)
    return Figures(
        streams,
        len(behind) / took,
        len(behind) / took * step / streams,
        cuts[49],
        cuts[98],
        {name: 1e6 * each / len(behind) for name, each in zip(PARTS, spent, strict=True)},
        grown / streams,
    )


def table(found: list[Figures]) -> Table:
    """Return the results as a table to print."""
    columns = "streams", "steps/s", "of ideal", "behind p50\nms", "behind p99\nms"
    shown = Table(*columns, *(f"{part}\nus/step" for part in PARTS), "kB of memory\nper stream")
    for each in found:
        shown.add_row(
            str(each.streams),
            f"{each.steps_per_second:.0f}",
            f"{each.of_ideal:.2f}",
            f"{1e3 * each.median_behind:.1f}",
            f"{1e3 * each.p99_behind:.1f}",
            *(f"{each.processor_per_step[part]:.0f}" for part in PARTS),
            f"{each.bytes_per_stream / 1024:.0f}",
        )
    return shown


def main(
    target: Annotated[
        Path, typer.Option(help="model directory whose tokenizer is used")
    ] = models.TARGET,
    streams: Annotated[
        str, typer.Option(help="numbers of concurrent streams, separated by commas")
    ] = "1,16,100,1000",
    step: Annotated[float, typer.Option(help="seconds between steps", min=0.001)] = 0.02,
    seconds: Annotated[float, typer.Option(help="seconds of each measurement")] = 10.0,
    file: report.JsonFile = None,
) -> None:
    """Measure steps per second and delay of many streams, with a verifier that runs no model."""
    try:
        found = [
            asyncio.run(measure(target, int(many), step, seconds)) for many in streams.split(",")
        ]
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    heading = f"streams of a table, a step every {1e3 * step:.0f} ms: {described('no model')}"
    report.publish(heading, table(found), [asdict(each) for each in found], file)


if __name__ == "__main__":
    typer.run(main)
