"""Measure the emitted tokens per round of a target and a draft model in real services.

The benchmark starts both services in this process on loopback and calls them in lockstep. Sampling
is greedy or seeded, so the output depends only on the prompt and the logits. All machines that
compute the same logits therefore give the same results.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from prometheus_client import CollectorRegistry
from rich.table import Table
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.peers.prompts import story_count, tokenised
from tandem.benchmarks.peers.repeats import chats
from tandem.benchmarks.peers.runner import Round, Runner
from tandem.benchmarks.serve.prompts import read
from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator.fleet.clients import DrafterClient, VerifierClient
from tandem.protos.errors import TandemError
from tandem.protos.service.process import configure_logging
from tandem.protos.transport import rpc
from tandem.protos.types import DraftShape, SamplingParams
from tandem.verifier_service import service as verifier_service

Weights = Literal["full", "int8"]
TEMPERATURES = (0.0, 0.7, 1.0)
SHAPES = {
    "chain of 1": DraftShape.chain(1),
    "chain of 2": DraftShape.chain(2),
    "chain of 4": DraftShape.chain(4),
    "chain of 8": DraftShape.chain(8),
    "tree of 8": DraftShape(levels=6, branches=4, nodes=8),
    "tree of 16": DraftShape(levels=8, branches=4, nodes=16),
    "tree of 32": DraftShape(levels=10, branches=4, nodes=32),
}
DESCRIBE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of all rounds with one draft shape at one temperature: a row of the table."""

    name: str
    shape: DraftShape
    temperature: float
    rounds: int
    tokens: int
    drafted: int
    accepted: int
    draft_seconds: float = 0.0  # total seconds of the draft model's forward passes

    @property
    def draft_milliseconds(self) -> float:
        """The milliseconds that the draft model's forward passes take per round."""
        return 1e3 * self.draft_seconds / self.rounds

    @property
    def mean_acceptance_length(self) -> float:
        """The number of emitted tokens per round."""
        return self.tokens / self.rounds

    @property
    def acceptance_rate(self) -> float:
        """The share of drafted tokens that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0


@asynccontextmanager
async def serving(
    target: Path, draft: Path, weights: Weights, registry: CollectorRegistry
) -> AsyncIterator[Runner]:
    """Run the verifier and the drafter for the duration of the context. The drafter's metrics are
    in `registry`. Raises Unusable.
    """
    async with (
        verifier_service.serving(
            ModelServiceConfig(model=target), CollectorRegistry()
        ) as verifier_address,
        drafter_service.serving(
            ModelServiceConfig(model=draft, weights=weights), registry
        ) as drafter_address,
        rpc.connect(verifier_address) as to_verifier,
        rpc.connect(drafter_address) as to_drafter,
    ):
        verifier = VerifierClient(to_verifier)
        described = await verifier.describe(DESCRIBE_SECONDS)
        ends = frozenset(described.end_token_ids)
        yield Runner(DrafterClient(to_drafter), verifier, ends)


async def measure(
    pair: Runner,
    prompts: Sequence[tuple[int, ...]],
    max_new_tokens: int,
    name: str,
    temperature: float,
    registry: CollectorRegistry,
) -> Figures:
    """Complete the prompts with one draft shape at one temperature, and return the results."""
    sampling, before = SamplingParams(temperature), passing(registry)
    completed = await pair.complete(prompts, max_new_tokens, sampling, SHAPES[name])
    found = figures(name, temperature, [done for _, rounds in completed for done in rounds])
    return replace(found, draft_seconds=passing(registry) - before)


def passing(registry: CollectorRegistry) -> float:
    """Return the total seconds that the drafter has spent in forward passes of its model."""
    return registry.get_sample_value("tandem_draft_forward_seconds_sum") or 0.0


def figures(name: str, temperature: float, rounds: Sequence[Round]) -> Figures:
    """Add up the results of rounds that have the same draft shape and temperature."""
    return Figures(
        name=name,
        shape=SHAPES[name],
        temperature=temperature,
        rounds=len(rounds),
        tokens=sum(len(done.tokens) for done in rounds),
        drafted=sum(done.drafted for done in rounds),
        accepted=sum(done.accepted for done in rounds),
    )


async def measure_all(
    target: Path,
    draft: Path,
    weights: Weights,
    prompts: Sequence[tuple[int, ...]],
    max_new_tokens: int,
) -> list[Figures]:
    """Measure every draft shape at every temperature."""
    registry = CollectorRegistry()
    async with serving(target, draft, weights, registry) as pair:
        return [
            await measure(pair, prompts, max_new_tokens, name, temperature, registry)
            for temperature in TEMPERATURES
            for name in SHAPES
        ]


def table(rows: Sequence[Figures]) -> Table:
    """Return the results as a table to print."""
    headings = (
        "T",
        "draft",
        "levels",
        "branches",
        "rounds",
        "mean acceptance\nlength",
        "accepted/\ndrafted",
        "drafter ms\na round",
    )
    shown = Table(*headings, box=None)
    for row in rows:
        shown.add_row(
            *(
                f"{row.temperature:g}",
                row.name,
                str(row.shape.levels),
                str(row.shape.branches),
                str(row.rounds),
            ),
            f"{row.mean_acceptance_length:.2f}",
            f"{row.acceptance_rate:.1%}",
            f"{row.draft_milliseconds:.2f}",
        )
    return shown


def entry(row: Figures) -> dict[str, Any]:
    """Return the fields of a row for the JSON file."""
    rates = {
        "mean_acceptance_length": row.mean_acceptance_length,
        "acceptance_rate": row.acceptance_rate,
        "draft_milliseconds": row.draft_milliseconds,
    }
    return asdict(row) | rates


def main(
    target: Annotated[Path, typer.Option(help="directory or GGUF file")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="directory or GGUF file")] = models.DRAFT,
    prompts: Annotated[int, typer.Option(help="number of prompts", min=1)] = 40,
    file: Annotated[
        Path | None,
        typer.Option(help="JSON Lines file with prompts, questions or turns; by default, stories"),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="maximum new tokens per prompt; a story may end earlier", min=2)
    ] = 64,
    draft_weights: Annotated[Weights, typer.Option(help="weights of the drafter")] = "full",
    json: report.JsonFile = None,
) -> None:
    """Measure the tokens per round of a target and draft model, by draft shape and temperature."""
    if not file and prompts > (stories := story_count()):
        problem = f"there are only {stories} stories, not {prompts}; --file reads other prompts"
        raise typer.BadParameter(problem, param_hint="--prompts")
    configure_logging("warning")
    logging.disable_progress_bar()
    try:
        if file:
            asked = chats(target, [each.text for each in read(file, prompts)])
        else:
            asked = tokenised(target, prompts)
        rows = asyncio.run(measure_all(target, draft, draft_weights, asked, max_new_tokens))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    kind = f"prompts of {file.name}" if file else "story prompts"
    how = f"{prompts} {kind}, up to {max_new_tokens} tokens each, draft weights {draft_weights}"
    heading = report.title(target, draft, how)
    report.publish(heading, table(rows), [entry(row) for row in rows], json)


if __name__ == "__main__":
    typer.run(main)
