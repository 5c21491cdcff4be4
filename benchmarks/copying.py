"""Tokens per round of drafting by lookup, on texts that repeat themselves and on those that do not.

Starts a verifier in this process on loopback and has it verify all that `verifier_service.lookup`
guesses, in lockstep and without a drafter service; a verifier that looks up by itself verifies what
pays. Three tasks, made of the story prompts:

    edited    tell a text of JOINED prompts again with one word changed, as `models.training.editor`
              teaches. The right answer repeats the text; the embedded target does not copy.
    circling  a prompt and the first TOLD tokens of its story, which the target is to tell on. By
              then its greedy stories go in circles, so the right answer repeats the end of the
              prompt over and over. Stories that have ended by then are left out.
    story     a prompt alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from prometheus_client import CollectorRegistry
from rich.table import Table
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.benchmarks.peers.prompts import story_count, tokenised
from tandem.benchmarks.peers.runner import Round, Runner, Tokens
from tandem.engine.config import ModelServiceConfig
from tandem.models.training.editor import task
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.protos.errors import TandemError
from tandem.protos.service.process import configure_logging
from tandem.protos.transport import rpc
from tandem.protos.types import Context, DraftShape, Proposal, SamplingParams
from tandem.protos.wire.drafting import draft_of
from tandem.verifier_service import service as verifier_service
from tandem.verifier_service.lookup import NgramLookup

TEMPERATURES = (0.0, 0.7)
SHAPES = {
    "chain of 4": DraftShape.chain(4),
    "chain of 8": DraftShape.chain(8),
    "chain of 16": DraftShape.chain(16),
    "tree of 16": DraftShape(levels=8, branches=4, nodes=16),
}
TOLD, JOINED = 240, 4
DESCRIBE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One row of the table: all rounds of one task with one shape at one temperature."""

    task: str
    name: str
    temperature: float
    texts: int
    rounds: int
    rounds_without_a_draft: int
    tokens: int
    drafted: int
    accepted: int

    @property
    def accepted_per_round(self) -> float:
        """Accepted draft tokens; a round emits one token more."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted out of drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


class Copying:
    """A drafter that looks up, in texts that are all said in each call."""

    async def propose(
        self, context: Context, shape: DraftShape, sampling: SamplingParams
    ) -> Proposal:
        """A draft for the context, empty where nothing recurs."""
        text = NgramLookup(shape)
        text.extend(context.tokens)
        return Proposal(draft_of(text.guess()), context.length, 0)

    async def close(self, session_id: bytes) -> None:
        """It has no sessions."""


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Runner]:
    """The verifier while the scope lasts; raises Unusable."""
    config = ModelServiceConfig(model=folder)
    async with (
        verifier_service.serving(config, CollectorRegistry()) as address,
        rpc.connect(address) as channel,
    ):
        verifier = VerifierClient(channel)
        described = await verifier.describe(DESCRIBE_SECONDS)
        yield Runner(Copying(), verifier, frozenset(described.end_token_ids))


async def tasks(
    target: Runner, prompts: Sequence[Tokens], line_break: Tokens
) -> dict[str, list[Tokens]]:
    """What is to be told on, by task."""
    told = await target.complete(prompts, TOLD, SamplingParams(), SHAPES["chain of 8"])
    return {
        "edited": edits(prompts, line_break),
        "circling": [
            prompt + completion
            for prompt, (completion, _) in zip(prompts, told, strict=True)
            if completion[-1] not in target.end_token_ids
        ],
        "story": list(prompts),
    }


def edits(prompts: Sequence[Tokens], line_break: Tokens) -> list[Tokens]:
    """Texts of several prompts each, and what to change in them."""
    rng, found = random.Random(0), []
    for place in range(0, len(prompts), JOINED):
        text = [token for prompt in prompts[place : place + JOINED] for token in prompt]
        old, new = rng.choice(text), rng.choice(rng.choice(prompts))
        found.append(tuple(task(text, old, new, line_break)))
    return found


async def measure_all(
    folder: Path, prompts: Sequence[Tokens], line_break: Tokens, count: int
) -> list[Figures]:
    """All rows."""
    async with serving(folder) as target:
        asked = await tasks(target, prompts, line_break)
        rows = []
        for temperature in TEMPERATURES:
            for task, texts in asked.items():
                for name, shape in SHAPES.items():
                    sampling = SamplingParams(temperature)
                    done = await target.complete(texts, count, sampling, shape)
                    rounds = [each for _, its in done for each in its]
                    rows.append(figures(task, name, temperature, len(texts), rounds))
        return rows


def figures(
    task: str, name: str, temperature: float, texts: int, rounds: Sequence[Round]
) -> Figures:
    """What the rounds add up to."""
    return Figures(
        task=task,
        name=name,
        temperature=temperature,
        texts=texts,
        rounds=len(rounds),
        rounds_without_a_draft=sum(not done.drafted for done in rounds),
        tokens=sum(len(done.tokens) for done in rounds),
        drafted=sum(done.drafted for done in rounds),
        accepted=sum(done.accepted for done in rounds),
    )


def table(rows: Sequence[Figures]) -> Table:
    """What people see."""
    headings = ("T", "task", "texts", "draft", "tokens", "rounds", "without\na draft")
    shown = Table(*headings, "accepted/\nround", "accepted/\ndrafted", box=None)
    for row in rows:
        shown.add_row(
            *(f"{row.temperature:g}", row.task, str(row.texts), row.name),
            *(str(row.tokens), str(row.rounds), str(row.rounds_without_a_draft)),
            *(f"{row.accepted_per_round:.2f}", f"{row.acceptance_rate:.1%}"),
        )
    return shown


def entry(row: Figures) -> dict[str, Any]:
    """The same for programs."""
    rates = {
        "accepted_per_round": row.accepted_per_round,
        "acceptance_rate": row.acceptance_rate,
    }
    return asdict(row) | rates


def main(
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    prompts: Annotated[
        int, typer.Option(help="how many story prompts", min=1, max=story_count())
    ] = 48,
    max_new_tokens: Annotated[
        int, typer.Option(help="a generation also ends where its story ends", min=2)
    ] = 64,
    json: Annotated[
        Path | None, typer.Option("--json", help="write the figures to this file too")
    ] = None,
) -> None:
    """Accepted tokens per round of drafting by lookup, by task, draft shape and temperature."""
    configure_logging("warning")
    logging.disable_progress_bar()
    try:
        line_break = tuple(load_tokenizer(target).encode("\n").ids)
        texts = tokenised(target, prompts)
        rows = asyncio.run(measure_all(target, texts, line_break, max_new_tokens))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    where = described("one thread per model")
    what = f"{prompts} prompts, up to {max_new_tokens} tokens each"
    heading = f"{target.name} + lookup, {what}: {where}, float32"
    report.publish(heading, table(rows), [entry(row) for row in rows], json)


if __name__ == "__main__":
    typer.run(main)
