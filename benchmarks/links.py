"""Measure the speedup from drafts if the drafter is a network round trip away. The tokens per
second of a complete system are compared with plain decoding and, if given, with another checkout.

In each case the systems take turns in random order on the same requests, so that other load on the
machine affects them equally. Each ratio is the median of its values in all turns but the first.
Orchestrators are restarted for each case, and model services for each kind of drafter. The
benchmark counts texts that differ between systems. Processor time, in ms per token, excludes the
threads that run models. `up` and `down` are bytes per token of the text, from orchestrator to
drafter and back.

The following command measures a link with a round trip of 80 ms, first with 50 kb/s and then with
1 Mb/s in each direction:

    python -m tandem.benchmarks.links --round-trip 80 --rate 50 --rate 1000 --at-once 1
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice, product
from pathlib import Path
from typing import Annotated, Any

import typer
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.peers.case import KINDS, Case
from tandem.benchmarks.peers.checkout import HERE, Checkout, save_untrained, serving
from tandem.benchmarks.peers.delay import State
from tandem.benchmarks.peers.prompts import story_prompts
from tandem.benchmarks.peers.turns import Job, Turn, Turns, figures, ratio, take, texts
from tandem.orchestrator.cli import certificates
from tandem.protos.errors import TandemError

SETTLE_SECONDS = 0.2
REQUESTS = 2  # number of requests in a turn, divided by the concurrency
SHARED_REQUESTS = 16  # concurrency at which a turn lasts twice the base time
DRAFTS, PLAIN, OTHER, AGAIN, OTHERS_PLAIN = "drafts", "plain", "other", "plain again", "other plain"
RATIOS = {
    "to plain": (DRAFTS, PLAIN),
    "to other": (DRAFTS, OTHER),
    "plain to other": (PLAIN, OTHERS_PLAIN),
    "noise": (AGAIN, PLAIN),
}
HEADINGS = (
    *("drafter", "T", "at once", "round trip", "kb/s", "plain", "drafts", "other"),
    *(f"{name}{after}" for name in RATIOS for after in ("", ", after")),
    *("first: plain", "drafts", "other", "per round", "other's", "up", "down"),
    *("cpu: plain", "drafts", "other", "differ", "failed"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The systems to compare, and the number and size of the requests."""

    folders: Sequence[Path]  # folders of this checkout and, if given, the other one
    target: Path
    draft: Path
    tokens: int
    turns: int
    seconds: float
    skip: int
    controls: bool
    tls: Path | None  # folder of the certificates
    link: str  # describes jitter and loss of the link

    @property
    def heading(self) -> str:
        """A title that names the models, the checkouts and the machine."""
        beside = " beside ".join(map(str, self.folders))
        what = f"some {self.tokens} tokens each{self.link}, {beside}"
        return report.title(self.target, self.draft, what)


@dataclass(frozen=True, slots=True)
class System:
    """A running checkout with a stub of its client API. If `levels` is None, the server chooses the
    depth of drafts.
    """

    checkout: Checkout
    stub: Any
    levels: int | None = None

    async def turn(self, jobs: Sequence[Job], case: Case, seconds: float) -> Turn:
        """Run one turn, which lasts longer at higher concurrency. Then wait long enough for the
        server to end the requests that were cancelled at the end of the turn.
        """
        seconds *= 1 + case.at_once / SHARED_REQUESTS
        before = await self.checkout.spent()
        turn = await take(self.stub, self.levels, jobs, case.at_once, seconds)
        after = await self.checkout.spent()
        await asyncio.sleep(SETTLE_SECONDS + case.link.longest)
        return replace(turn, spent=after.since(before))


async def measure(systems: Mapping[str, System], case: Case, plan: Plan) -> Turns:
    """Run all turns of a case. Only the texts of the first turn are used, not its times."""
    rng, prompts, turns = random.Random(repr(case)), cycle(story_prompts()), []
    for _ in range(1 + plan.turns):
        batch = islice(prompts, REQUESTS * case.at_once)
        jobs = [Job.drawn(prompt, case.temperature, plan.tokens, rng) for prompt in batch]
        order = rng.sample(list(systems), len(systems))
        turns.append({name: await systems[name].turn(jobs, case, plan.seconds) for name in order})
    return turns


def row(case: Case, turns: Turns, skip: int) -> dict[str, Any]:
    """Return the results of a case as a row for the JSON file."""
    compared, differing = texts(turns)
    return {
        **asdict(case),
        "skip": skip,
        "ratios": {name: ratio(turns[1:], *pair) for name, pair in RATIOS.items()},
        "ratios_after": {name: ratio(turns[1:], *pair, skip) for name, pair in RATIOS.items()},
        "systems": {name: figures([turn[name] for turn in turns[1:]], skip) for name in turns[0]},
        "compared": compared,
        "differing": differing,
    }


async def rows(plan: Plan, cases: Sequence[Case], untrained: Path) -> AsyncIterator[dict[str, Any]]:
    """Measure all cases, and yield the results of each case as soon as it has ended."""
    for kind in dict.fromkeys(case.drafter for case in cases):
        draft = untrained if kind == "random" else plan.draft
        async with AsyncExitStack() as stack:
            checkouts = [
                await stack.enter_async_context(serving(folder, plan.target, draft, plan.tls))
                for folder in plan.folders
            ]
            for case in (case for case in cases if case.drafter == kind):
                yield row(case, await turns_of(checkouts, case, plan), plan.skip)


async def turns_of(checkouts: Sequence[Checkout], case: Case, plan: Plan) -> Turns:
    """Measure a case: start an orchestrator for each checkout, set the state of the link to each
    drafter, and take all turns.
    """
    async with AsyncExitStack() as stack:
        stubs = [await stack.enter_async_context(each.orchestrated()) for each in checkouts]
        systems = {
            DRAFTS: System(checkouts[0], stubs[0]),
            PLAIN: System(checkouts[0], stubs[0], 0),
        }
        if plan.controls:
            systems[AGAIN] = systems[PLAIN]
        for checkout, stub in zip(checkouts[1:], stubs[1:], strict=True):
            systems[OTHER] = System(checkout, stub)
            if plan.controls:
                systems[OTHERS_PLAIN] = System(checkout, stub, 0)
        try:
            for each in checkouts:
                await each.link(case.link)
            return await measure(systems, case, plan)
        finally:
            for each in checkouts:
                await each.link(State())


def line(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row as strings, one for each column."""

    def told(name: str, figure: str, digits: int = 0, scale: float = 1.0) -> str:
        value = row["systems"].get(name, {}).get(figure)
        return "" if value is None else f"{scale * value:.{digits}f}"

    ratios = (row[when][name] for name in RATIOS for when in ("ratios", "ratios_after"))
    return [
        *(row["drafter"], f"{row['temperature']:g}", str(row["at_once"])),
        f"{row['round_trip']:g} ms",
        f"{row['rate']:g}" if row["rate"] else "",
        *(told(name, "rate") for name in (PLAIN, DRAFTS, OTHER)),
        *("" if value is None else f"{value:.2f}" for value in ratios),
        *(told(name, "first_token", 0, 1000) for name in (PLAIN, DRAFTS, OTHER)),
        *(told(name, "per_round", 2) for name in (DRAFTS, OTHER)),
        *(told(DRAFTS, way) for way in ("up", "down")),
        *(told(name, "processor", 2, 1000) for name in (PLAIN, DRAFTS, OTHER)),
        f"{row['differing']} of {row['compared']}",
        str(sum(each["failed"] for each in row["systems"].values())),
    ]


def written(texts: Sequence[str]) -> str:
    """Join the cells of a row to a line in which each cell is below its heading."""
    return "  ".join(c.rjust(max(7, len(h))) for c, h in zip(texts, HEADINGS, strict=True))


async def run(plan: Plan, cases: Sequence[Case], untrained: Path, file: Path | None) -> None:
    """Print each row when it is measured, and write all rows so far to `file`, if given."""
    print(plan.heading, written(HEADINGS), sep="\n", flush=True)
    found = []
    async for each in rows(plan, cases, untrained):
        found.append(each)
        print(written(line(each)), flush=True)
        if file:
            report.write(plan.heading, found, file)


def main(
    this: Annotated[Path, typer.Option(help="checkout to measure")] = HERE,
    other: Annotated[Path | None, typer.Option(help="another checkout to compare with")] = None,
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory of the drafter")] = models.DRAFT,
    drafter: Annotated[
        list[str],
        typer.Option(help="kind: trained, random, hung, killed, or slowN: N ms slower"),
    ] = ["trained"],  # noqa: B006
    temperature: Annotated[list[float], typer.Option(help="repeatable")] = [0.0, 0.7, 1.0],  # noqa: B006
    at_once: Annotated[list[int], typer.Option(help="requests", min=1)] = [1, 8, 32],  # noqa: B006
    round_trip: Annotated[list[float], typer.Option(help="ms", min=0)] = [0.0, 5.0, 20.0, 80.0],  # noqa: B006
    jitter: Annotated[float, typer.Option(help="random delay, up to this many ms", min=0)] = 0.0,
    loss: Annotated[float, typer.Option(help="percent of lost segments", min=0, max=50)] = 0.0,
    rate: Annotated[list[float], typer.Option(help="kb/s each way, 0: no limit", min=0)] = [0.0],  # noqa: B006
    tokens: Annotated[int, typer.Option(help="average tokens of an answer", min=2)] = 64,
    turns: Annotated[int, typer.Option(help="timed turns of each system", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="seconds of a turn at concurrency 1")] = 1.5,
    skip: Annotated[int, typer.Option(help="first tokens of each answer to skip")] = 32,
    controls: Annotated[bool, typer.Option(help="measure plain decoding twice")] = False,
    tls: Annotated[bool, typer.Option("--tls", help="use TLS on every hop")] = False,
    json: report.JsonFile = None,
) -> None:
    """Measure tokens per second of a complete system whose drafter is a round trip away."""
    if unknown := [kind for kind in drafter if not KINDS.fullmatch(kind)]:
        raise typer.BadParameter(f"unknown kind {unknown[0]!r}", param_hint="--drafter")
    logging.disable_progress_bar()
    folders = [folder.resolve() for folder in (this, other) if folder]
    each = product(drafter, temperature, at_once, round_trip, rate)
    cases = [Case(kind, heat, n, trip, jitter, loss, most) for kind, heat, n, trip, most in each]
    with tempfile.TemporaryDirectory() as name:
        untrained = save_untrained(draft, Path(name)) if "random" in drafter else draft
        keys = Path(name) if tls and certificates.make(Path(name)) else None
        target, draft = target.resolve(), draft.resolve()
        link = f", {jitter:g} ms jitter, {loss:g} % loss" if jitter or loss else ""
        plan = Plan(folders, target, draft, tokens, turns, seconds, skip, controls, keys, link)
        try:
            asyncio.run(run(plan, cases, untrained, json))
        except TandemError as problem:
            raise SystemExit(f"error: {problem}") from None


if __name__ == "__main__":
    typer.run(main)
