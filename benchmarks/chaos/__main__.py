"""Cause faults in a system with several processes of each service, while clients stream.

    tandem chaos --faults 100 --verifiers 2 --drafters 2 --cells 2

Every stream is compared, token by token, with the answer that the same system gave to the request
before the first fault.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Annotated, Any

import typer
from rich.progress import track
from rich.table import Table

from tandem import AsyncClient, models
from tandem.benchmarks.chaos import history
from tandem.benchmarks.chaos.history import (
    Asked,
    Ended,
    Event,
    Healed,
    Received,
    Struck,
    Truth,
    Verdict,
)
from tandem.benchmarks.chaos.plan import Fault, Kind, faults
from tandem.benchmarks.chaos.system import (
    CELL,
    DRAFTER,
    VERIFIER,
    System,
    running,
)
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.benchmarks.peers.prompts import tokenised
from tandem.protos.errors import TandemError, Unusable
from tandem.protos.types import SEEDS

Record = Callable[[Event], object]

REQUESTS = 12
STEADY_SECONDS = 2.0  # seconds of streaming before the first fault


def requests(target: Path, seed: int, tokens: int) -> list[dict[str, object]]:
    """Build greedy and seeded requests from the story prompts."""
    rng = random.Random(seed)
    return [
        {
            "prompt": prompt,
            "temperature": rng.choice([0.0, 0.7, 1.0]),
            "seed": rng.randrange(SEEDS),
            "max_new_tokens": tokens,
            "ignore_eos": True,
        }
        for prompt in tokenised(target, REQUESTS)
    ]


class Watch:
    """Clients that stream one request after another until `done` is set, and that record all chunks
    and errors.
    """

    def __init__(
        self,
        client: AsyncClient,
        asked: list[dict[str, object]],
        seed: int,
        record: Record,
    ) -> None:
        self.done = False
        self._record = record
        self._client = client
        self._asked = asked
        self._rng = random.Random(seed)
        self._streams = count()

    async def learn(self) -> None:
        """Record the expected answer to each request, before the first fault."""
        for number, request in enumerate(self._asked):
            answer = await self._client.generate(**request)  # type: ignore[arg-type]
            self._record(Truth(number, tuple(answer.token_ids)))

    async def stream(self) -> None:
        """Act as one client: stream random requests until `done` is set."""
        while not self.done:
            stream, number = next(self._streams), self._rng.randrange(len(self._asked))
            self._record(Asked(monotonic(), stream, number))
            error = ""
            try:
                async with self._client.stream(**self._asked[number]) as chunks:  # type: ignore[arg-type]
                    async for chunk in chunks:
                        tokens = tuple(chunk.token_ids)
                        so_far = chunk.completion_tokens
                        self._record(Received(monotonic(), stream, tokens, so_far))
            except TandemError as problem:
                error = f"{type(problem).__name__}: {problem}"
            self._record(Ended(monotonic(), stream, error))

    def strike(self, fault: Fault) -> None:
        """Record that a fault begins."""
        self._record(Struck(monotonic(), f"{fault.kind} {fault.role}", str(fault)))

    def heal(self) -> None:
        """Record that the most recent fault is over."""
        self._record(Healed(monotonic()))


async def run(system: System, watch: Watch, plan: list[Fault], streams: int) -> str:
    """Cause all faults of a plan, one after another, while clients stream. Returns an error message
    if the run ended before its last fault, otherwise "".
    """
    await watch.learn()
    async with asyncio.TaskGroup() as clients:
        for _ in range(streams):
            clients.create_task(watch.stream())
        try:
            await asyncio.sleep(STEADY_SECONDS)
            for fault in track(plan, "faults"):
                await asyncio.sleep(fault.pause)
                watch.strike(fault)
                await system.suffer(fault)
                watch.heal()
        except Unusable as problem:
            return str(problem)
        finally:
            watch.done = True
    return ""


def recorded(file: Path, whole: Callable[[Record], Coroutine[Any, Any, str]]) -> str:
    """Run the coroutine function `whole`, and write the events that it records to a file as they
    happen. Returns an error message if the run ended before its last fault, otherwise "". Raises
    Unusable if the file cannot be written.
    """
    try:
        opened = file.open("w", buffering=1, encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{file}: {error.strerror}") from None
    with opened as lines:
        try:
            return asyncio.run(whole(partial(history.write, lines=lines)))
        except KeyboardInterrupt:
            return "the run was interrupted before the last fault"


def table(verdict: Verdict) -> Table:
    """Return a table of the longest gaps in streams, by kind of fault and for all faults."""
    shown = Table("fault", "times", "longest gap, s", "longest part without a fault, s")
    for what in sorted(verdict.gaps):
        gaps = f"{verdict.gaps[what]:.2f}", f"{verdict.healthy_gaps[what]:.2f}"
        shown.add_row(what, str(verdict.struck[what] or ""), *gaps)
    shown.add_section()
    both = verdict.gaps, verdict.healthy_gaps
    longest = (f"{max(gaps.values(), default=0):.2f}" for gaps in both)
    shown.add_row("all", str(verdict.faults), *longest)
    return shown


def show(file: Path, figures: Path | None) -> None:
    """Judge a history, print the verdict, and write it to the JSON file `figures` if given. Exits
    with 1 if a client saw an error, or lost, duplicated or changed tokens.
    """
    try:
        verdict = history.judge(history.read(file))
    except Unusable as problem:
        raise SystemExit(f"error: {problem}") from None
    heading = f"{verdict.streams} streams, {verdict.tokens} tokens, {verdict.faults} faults"
    errors = sum(verdict.errors.values())
    counts = f"{verdict.lost} lost, {verdict.duplicated} duplicated, {verdict.changed} changed"
    report.publish(
        f"{heading}: {counts}, {errors} errors", table(verdict), [vars(verdict)], figures
    )
    for error, times in verdict.errors.most_common():
        print(f"{times} x {error}")
    if not verdict.flawless:
        raise SystemExit(1)


app = typer.Typer(add_completion=False, rich_markup_mode=None)  # rich's tables truncate names


@app.command()
def main(
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory of the drafter")] = models.DRAFT,
    number: Annotated[int, typer.Option("--faults", help="number of faults", min=0)] = 50,
    seed: Annotated[int, typer.Option(help="seed of the faults and the requests")] = 0,
    kind: Annotated[
        list[Kind] | None, typer.Option(help="kind of fault to cause; repeatable; default: all")
    ] = None,
    verifiers: Annotated[int, typer.Option(min=1)] = 1,
    drafters: Annotated[int, typer.Option(min=1)] = 1,
    cells: Annotated[int, typer.Option(min=1)] = 1,
    streams: Annotated[int, typer.Option(help="streams at once", min=1)] = 8,
    tokens: Annotated[int, typer.Option(help="tokens of an answer", min=1)] = 120,
    file: Annotated[Path | None, typer.Option("--history", help="file for the history")] = None,
    check: Annotated[Path | None, typer.Option(help="only judge this existing history")] = None,
    figures: Annotated[Path | None, typer.Option("--json", help="also write results here")] = None,
) -> None:
    """Cause faults one after another while clients stream. Ctrl-C ends the run early. Exits with 1
    if a client saw an error, or lost, duplicated or changed tokens.
    """
    if check:
        show(check, figures)
        return
    members = {VERIFIER: verifiers, DRAFTER: drafters, CELL: cells}
    print(described("one thread per model"))
    plan = list(islice(faults(seed, members, kind or list(Kind)), number))

    async def whole(record: Record) -> str:
        async with (
            running(target, draft, verifiers, drafters, cells) as system,
            AsyncClient(*system.addresses) as client,
        ):
            return await run(system, Watch(client, asked, seed, record), plan, streams)

    with TemporaryDirectory() as folder:
        file = file or Path(folder) / "history"
        try:
            asked = requests(target, seed, tokens)
            problem = recorded(file, whole)
        except TandemError as error:
            raise SystemExit(f"error: {error}") from None
        show(file, figures)
    if problem:
        raise SystemExit(f"error: {problem}")


if __name__ == "__main__":
    app()
