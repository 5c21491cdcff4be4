"""Tokens per second, side by side in one run: plain `generate()`, transformers' assisted decoding,
and Tandem.

Greedy, one core per process, float32. The systems take turns prompt by prompt, so that a noisy
machine hits all alike, and must emit the same tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from rich.table import Table
from transformers.utils import logging

import models
from benchmarks import report
from benchmarks.prompts import story_count, tokenised
from benchmarks.systems import Completion, Plain, Prompt, System, Tandem, load, tandem_up
from protos.errors import TandemError

AT_ONCE = 8
REFERENCE = "generate()"


@dataclass(slots=True)
class Runs:
    """What one system did: per request its tokens and seconds; `wall` seconds in all, shared ones
    counted once.
    """

    completions: list[Completion] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wall: float = 0.0

    @property
    def tokens(self) -> int:
        """Emitted tokens."""
        return sum(len(completion.tokens) for completion in self.completions)

    @property
    def total_speed(self) -> float:
        """Tokens per second of the wall clock."""
        return self.tokens / self.wall

    @property
    def median_speed(self) -> float:
        """Tokens per second of one request, median over requests."""
        pairs = zip(self.completions, self.seconds, strict=True)
        return median(len(completion.tokens) / seconds for completion, seconds in pairs)

    @property
    def tokens_per_step(self) -> float | None:
        """Mean acceptance length, if the system tells its steps."""
        steps = sum(completion.steps for completion in self.completions)
        return self.tokens / steps if steps else None

    def differing(self, reference: Runs) -> int:
        """Requests whose tokens are not those of the reference."""
        right = dict(zip(reference.prompts, reference.completions, strict=True))
        answers = zip(self.prompts, self.completions, strict=True)
        return sum(completion.tokens != right[prompt].tokens for prompt, completion in answers)


@dataclass(frozen=True, slots=True)
class Contest:
    """What is compared: systems that serve one request at a time, and one that serves several at
    once.
    """

    alone: Mapping[str, System]
    together: tuple[str, System]
    max_new_tokens: int

    async def warm_up(self, prompt: Prompt) -> None:
        """Every system once, untimed."""
        for system in self.alone.values():
            await system.complete(prompt, self.max_new_tokens)

    async def run(self, prompts: Sequence[Prompt]) -> dict[str, Runs]:
        """All systems on all prompts; whoever goes first changes from prompt to prompt."""
        runs = {name: Runs() for name in (*self.alone, self.together[0])}
        names = list(self.alone)
        await self.warm_up(prompts[0])
        for index in track(range(len(prompts)), "measuring", transient=True):
            first = index % len(names)
            for name in names[first:] + names[:first]:
                await timed(
                    self.alone[name], prompts[index : index + 1], self.max_new_tokens, runs[name]
                )
            if index % AT_ONCE == 0:
                name, system = self.together
                batch = [prompts[(index + place) % len(prompts)] for place in range(AT_ONCE)]
                await timed(system, batch, self.max_new_tokens, runs[name])
        return runs


async def timed(system: System, prompts: Sequence[Prompt], max_new_tokens: int, runs: Runs) -> None:
    """Complete the prompts at the same time and note how long each and all took."""

    async def one(prompt: Prompt) -> tuple[Completion, float]:
        began = time.perf_counter()
        completion = await system.complete(prompt, max_new_tokens)
        return completion, time.perf_counter() - began

    began = time.perf_counter()
    answers = await asyncio.gather(*map(one, prompts))
    runs.wall += time.perf_counter() - began
    runs.prompts += prompts
    runs.completions += [completion for completion, _ in answers]
    runs.seconds += [seconds for _, seconds in answers]


async def compete(
    target: Path, draft: Path, prompts: Sequence[Prompt], max_new_tokens: int, ray: bool
) -> dict[str, Runs]:
    """Load and start everything, then run; raises Unusable."""
    torch.set_num_threads(1)
    network, small = load(target), load(draft)
    async with tandem_up(target, draft, ray) as stub:
        alone: dict[str, System] = {
            REFERENCE: Plain(network),
            "generate(assistant_model=...)": Plain(network, small),
            "Tandem": Tandem(stub),
            "Tandem, chain of 4": Tandem(stub, levels=4, branches=1),
            "Tandem, plain decoding": Tandem(stub, levels=0),
        }
        return await Contest(
            alone, (f"Tandem, {AT_ONCE} at once", Tandem(stub)), max_new_tokens
        ).run(prompts)


def entries(runs: Mapping[str, Runs]) -> list[dict[str, Any]]:
    """One entry per system; ratios are to plain `generate()`; noise pulls at the total one."""
    reference = runs[REFERENCE]
    return [
        {
            "system": name,
            "requests": len(each.completions),
            "median_tokens_per_second": each.median_speed,
            "total_tokens_per_second": each.total_speed,
            "median_ratio": each.median_speed / reference.median_speed,
            "total_ratio": each.total_speed / reference.total_speed,
            "tokens_per_step": each.tokens_per_step,
            "differing": each.differing(reference),
        }
        for name, each in runs.items()
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What people see."""
    headings = ("system", "tokens/s, median\nof requests", "ratio", "tokens/s\nin all", "ratio")
    shown = Table(*headings, "tokens\nper step", "tokens\ndiffer", box=None)
    for row in rows:
        shown.add_row(
            row["system"],
            f"{row['median_tokens_per_second']:.0f}",
            f"{row['median_ratio']:.2f}",
            f"{row['total_tokens_per_second']:.0f}",
            f"{row['total_ratio']:.2f}",
            f"{row['tokens_per_step']:.2f}" if row["tokens_per_step"] else "",
            f"{row['differing']} of {row['requests']}",
        )
    return shown


def main(
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory of the drafter")] = models.DRAFT,
    prompts: Annotated[
        int, typer.Option(help="how many story prompts", min=1, max=story_count())
    ] = 20,
    max_new_tokens: Annotated[
        int, typer.Option(help="a completion also ends where its story ends", min=2)
    ] = 64,
    ray: Annotated[
        bool, typer.Option(help="Tandem's round workers as Ray actors, as `tandem up` has them")
    ] = True,
    json: Annotated[
        Path | None, typer.Option("--json", help="write the figures to this file too")
    ] = None,
) -> None:
    """Tokens per second of Tandem and of transformers, side by side."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        rows = entries(
            asyncio.run(compete(target, draft, tokenised(target, prompts), max_new_tokens, ray))
        )
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    heading = report.title(
        target, draft, f"{prompts} prompts, up to {max_new_tokens} tokens each, greedy"
    )
    report.publish(heading, table(rows), rows, json)


if __name__ == "__main__":
    typer.run(main)
