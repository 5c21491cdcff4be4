"""Does it draft as much as pays? The controller beside fixed draft shapes and no drafts at all.

Tokens per second of the orchestrator's own rounds on the pair, for combinations of temperature,
kind of prompt, requests at once and round trip to the drafter (added here, in front of real calls).
What counts is the time in which so many requests are at work, not the end, when some are done;
they differ in length, else those without drafts would begin and end together.
All take short turns within a cell, so that whatever else the machine does hits them alike, and what
is told is the median of the ratios within a turn. A sweep finds the best fixed shape; turns of
their own then compare it, no drafts and the controller: the best of several noisy figures flatters
itself. What no drafts are to themselves, taken twice a turn, tells how far figures can be trusted.
Where the controller mostly does not draft, its rate to that of its own rounds without drafts tells
more exactly what trials cost.
The controller learns in each cell anew.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from rich.progress import track
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

import models
from benchmarks import report
from benchmarks.prompts import KINDS, kinds
from benchmarks.runner import Pace, Runner, Tokens, to_own
from orchestrator import launch
from orchestrator.clients import DrafterClient, VerifierClient
from orchestrator.goodput import Goodput
from orchestrator.policy import Policy
from orchestrator.ports import Drafter
from protos import rpc
from protos.errors import TandemError
from protos.process import configure_logging
from protos.types import Context, DraftShape, Proposal, SamplingParams, Schedule

MOST = DraftShape(8, 4, 32)
DESCRIBE_SECONDS = 10.0
REQUESTS = 3  # of a turn, in each place
SWEEP = 2  # turns of every fixed shape
PLAIN, AGAIN, MEASURED = "none", "none again", "goodput"
FIXED = {
    PLAIN: DraftShape(0),
    "chain of 1": DraftShape.chain(1),
    "chain of 3": DraftShape.chain(3),
    "tree of 8": DraftShape(4, 4, 8),
    "tree of 16": DraftShape(6, 4, 16),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination."""

    temperature: float
    kind: str
    at_once: int
    round_trip: float  # seconds


@dataclass(frozen=True, slots=True)
class Figures:
    """What one cell showed."""

    cell: Cell
    fixed: dict[str, float]  # rates to that without drafts, in the sweep
    best: str
    to_plain: float  # the controller's rate to that without drafts
    to_best: float  # and to that of the best fixed shape
    noise: float  # the rate without drafts, to itself in other turns
    to_own: float | None  # the controller's, to that of its own rounds without drafts


@dataclass(frozen=True, slots=True)
class Distant:
    """A drafter that is a round trip away."""

    drafter: Drafter
    round_trip: float

    async def propose(
        self, context: Context, shape: DraftShape, sampling: SamplingParams
    ) -> Proposal:
        """A draft, later."""
        await asyncio.sleep(self.round_trip)
        return await self.drafter.propose(context, shape, sampling)

    async def close(self, session_id: bytes) -> None:
        """Free the session."""
        await self.drafter.close(session_id)


def policies(goodput: Goodput) -> dict[str, Callable[[], Policy]]:
    """Ways to decide how much to draft."""
    found: dict[str, Callable[[], Policy]] = {
        name: partial(Policy.of, shape) for name, shape in FIXED.items()
    }
    found[AGAIN] = found[PLAIN]
    return found | {MEASURED: partial(Policy.of, MOST, Schedule.GOODPUT, goodput)}


def ignorant(draft: Path, folder: Path) -> Path:
    """The same model in a folder, as if it had never been trained."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(draft)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(draft / name, folder)
    return folder


async def measure(
    runner: Runner, cell: Cell, prompts: Sequence[Tokens], tokens: int, turns: int
) -> Figures:
    """One cell: everyone's turns in the sweep, of which the first does not count, then `turns` of
    the controller and its rivals.
    """
    distant = replace(runner, drafter=Distant(runner.drafter, cell.round_trip))
    sampling, count = SamplingParams(cell.temperature), REQUESTS * cell.at_once
    goodput, chosen, order = Goodput(), cycle(prompts), random.Random(0)
    goodput.running = cell.at_once
    ways = policies(goodput)

    async def turn(names: Sequence[str]) -> dict[str, Pace]:
        """The pace of each, on the same prompts."""
        batch, paces = list(islice(chosen, count)), {}
        lengths = [order.randint(tokens // 2, tokens + tokens // 2) for _ in batch]
        for name in order.sample(names, len(names)):
            paces[name] = await distant.pace(batch, lengths, sampling, ways[name], cell.at_once)
        return paces

    sweep = [await turn([*FIXED, MEASURED]) for _ in range(SWEEP + 1)][1:]
    fixed = {name: to(sweep, name, PLAIN) for name in FIXED}
    best = max(fixed, key=lambda name: fixed[name])
    rivals = [await turn(sorted({PLAIN, AGAIN, best, MEASURED})) for _ in range(turns)]
    to_plain, to_best = to(rivals, MEASURED, PLAIN), to(rivals, MEASURED, best)
    noise, own = to(rivals, AGAIN, PLAIN), to_own([turn[MEASURED] for turn in rivals])
    return Figures(cell, fixed, best, to_plain, to_best, noise, own)


def to(turns: Sequence[dict[str, Pace]], name: str, other: str) -> float:
    """The median ratio of two rates of a turn."""
    return median(paces[name].rate / paces[other].rate for paces in turns)


async def measure_all(
    target: Path, draft: Path, cells: Sequence[Cell], tokens: int, turns: int
) -> list[Figures]:
    """All cells."""
    prompts = kinds(target)
    async with (
        launch.up(launch.Plan(target, draft, port=0, ray=False)) as tandem,
        rpc.connect(tandem.addresses["verifier"]) as to_verifier,
        rpc.connect(tandem.addresses["drafter"]) as to_drafter,
    ):
        verifier = VerifierClient(to_verifier)
        ends = frozenset((await verifier.describe(DESCRIBE_SECONDS)).end_token_ids)
        runner = Runner(DrafterClient(to_drafter), verifier, ends)
        return [
            await measure(runner, cell, prompts[cell.kind], tokens, turns)
            for cell in track(cells, "cells")
        ]


def table(rows: Sequence[Figures]) -> Table:
    """What people see: the sweep, then the controller."""
    shown = Table("T", "prompts", "at once", "round trip", *FIXED, box=None)
    for heading in ("to plain", "to best", "noise", "to own"):
        shown.add_column(heading)
    for row in rows:
        cell = row.cell
        shown.add_row(
            *(f"{cell.temperature:g}", cell.kind, str(cell.at_once)),
            f"{1000 * cell.round_trip:.0f} ms",
            *(f"{rate:.2f}" for rate in row.fixed.values()),
            f"{row.to_plain:.2f}",
            *(f"{row.to_best:.2f}", f"{row.noise:.2f}"),
            f"{row.to_own:.3f}" if row.to_own else "",
        )
    return shown


def main(
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory of the drafter")] = models.DRAFT,
    temperature: Annotated[list[float], typer.Option(help="may be repeated")] = [0.0, 0.7, 1.0],  # noqa: B006
    kind: Annotated[list[str], typer.Option(help="of prompts")] = ["story", "code", "random"],  # noqa: B006
    at_once: Annotated[list[int], typer.Option(help="requests")] = [1, 8],  # noqa: B006
    round_trip: Annotated[list[float], typer.Option(help="ms")] = [0.0, 20.0, 80.0],  # noqa: B006
    tokens: Annotated[int, typer.Option(help="per request, half of it more or less", min=2)] = 40,
    turns: Annotated[
        int, typer.Option(help="of the controller and its rivals in a cell", min=1)
    ] = 9,
    untrained: Annotated[bool, typer.Option(help="give the drafter random weights")] = False,
    json: Annotated[Path | None, typer.Option("--json", help="figures, for programs")] = None,
) -> None:
    """Tokens per second of the controller beside fixed shapes."""
    for name in kind:
        if name not in KINDS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(KINDS)}", param_hint="--kind")
    configure_logging("error")
    logging.disable_progress_bar()
    cells = [
        Cell(temperature, kind, at_once, trip / 1000)
        for temperature, kind, at_once, trip in product(temperature, kind, at_once, round_trip)
    ]
    with tempfile.TemporaryDirectory() as folder:
        guessing = ignorant(draft, Path(folder)) if untrained else draft
        try:
            rows = asyncio.run(measure_all(target, guessing, cells, tokens, turns))
        except TandemError as problem:
            raise SystemExit(f"error: {problem}") from None
    heading = report.title(
        target, draft, f"fixed shapes and the controller, {tokens} tokens a request"
    )
    report.publish(heading, table(rows), [asdict(row) for row in rows], json)
    for told in ("to_plain", "to_best", "noise", "to_own"):
        if not (found := sorted(value for row in rows if (value := getattr(row, told)))):
            continue
        print(f"{told}: {found[0]:.3f} at the least, median {median(found):.3f}, {found[-1]:.3f}")


if __name__ == "__main__":
    typer.run(main)
