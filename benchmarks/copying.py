"""Count the accepted tokens per round of drafts made without a model, on answers that repeat text.

The benchmark starts a verifier in this process on loopback and has it answer each task once. Next,
the benchmark replays the answers and counts how many tokens of each drafter would be accepted if
all its proposals were verified. There are three drafters: the verifier's own, which looks up
suffixes in the text and in earlier answers; the same drafter without earlier answers; and
transformers' prompt lookup. The answers do not depend on the drafts, so the counts do not depend on
timing. A target with a chat template gets these tasks:

    asked       20 questions
    again       the same questions with small changes, asked after all the originals
    code edits  requests to change one name in a program

A target without a chat template gets tasks that are made from the story prompts:

    edited    a request to repeat JOINED prompts with one word changed, in the format that
              `models.training.editor` teaches. The right answer repeats the text, but the embedded
              target was not trained to do so.
    circling  a prompt and the first STORY_TOKENS tokens that the target has written after it. By
              then, the greedily decoded story repeats itself. The answer therefore repeats the end
              of its prompt over and over. Stories that end earlier are left out.
    story     a story prompt without additions
    again     the same story prompts, each after the last tokens of another prompt
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from prometheus_client import CollectorRegistry
from rich.table import Table
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.benchmarks.peers import repeats
from tandem.benchmarks.peers.prompts import story_count, tokenised
from tandem.benchmarks.peers.replay import Count, PromptLookup, Session, Suffix, replay
from tandem.benchmarks.peers.runner import Runner, Tokens
from tandem.engine.config import ModelServiceConfig
from tandem.models.training.editor import task
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.protos.errors import InvalidRequest, TandemError
from tandem.protos.service.process import configure_logging
from tandem.protos.transport import rpc
from tandem.protos.types import Context, DraftShape, ProposeResult, SamplingParams
from tandem.verifier_service import service as verifier_service
from tandem.verifier_service.sources import Sources

TEMPERATURES = (0.0, 0.7)
SHAPES = {
    "chain of 8": DraftShape.chain(8),
    "chain of 16": DraftShape.chain(16),
    "tree of 16": DraftShape(levels=8, branches=4, nodes=16),
    "tree of 64": DraftShape(levels=32, branches=4, nodes=64),
}
RECENT_TOKENS = ModelServiceConfig.model_fields["recent_tokens"].default
STORY_TOKENS, JOINED, DISTURBING = 240, 4, 3
DESCRIBE_SECONDS = 10.0
Answered = list[tuple[Tokens, Tokens]]  # (prompt, answer) pairs
Begin = Callable[[DraftShape, Tokens], Session]


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of all rounds of one task with one drafter and one draft shape."""

    task: str
    drafter: str
    shape: str
    temperature: float
    tokens: int
    count: Count


class Suffixes:
    """A drafter for `Runner` that looks up suffixes in the text. Its drafts do not change the
    results. They save verifier steps, which makes the benchmark faster.
    """

    async def propose(
        self, context: Context, shape: DraftShape, sampling: SamplingParams
    ) -> ProposeResult:
        """Propose the tokens that followed earlier occurrences of the context's last tokens."""
        session = Suffix(Sources.of_all(), shape, context.tokens)
        return ProposeResult(session.draft(context.tokens), context.length, 0)

    async def close(self, session_id: bytes) -> None:
        """Do nothing: this drafter has no sessions."""


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Runner]:
    """Run the verifier for the duration of the context. Raises Unusable."""
    config = ModelServiceConfig(model=folder)
    async with (
        verifier_service.serving(config, CollectorRegistry()) as address,
        rpc.connect(address) as channel,
    ):
        verifier = VerifierClient(channel)
        described = await verifier.describe(DESCRIBE_SECONDS)
        yield Runner(Suffixes(), verifier, frozenset(described.end_token_ids))


async def tasks(folder: Path, target: Runner, prompts: int) -> dict[str, list[Tokens]]:
    """Return the prompts of each task, in the order in which the target answers the tasks."""
    with suppress(InvalidRequest):  # the target has no chat template
        asked, again = (repeats.chats(folder, texts[:prompts]) for texts in repeats.questions())
        return {
            "asked": asked,
            "again": again,
            "code edits": repeats.chats(folder, repeats.edits()),
        }
    stories = tokenised(folder, prompts)
    line_break = tuple(load_tokenizer(folder).encode("\n").ids)
    completions = await target.complete(
        stories, STORY_TOKENS, SamplingParams(), SHAPES["chain of 8"]
    )
    return {
        "edited": edits(stories, line_break),
        "circling": [
            prompt + completion
            for prompt, (completion, _) in zip(stories, completions, strict=True)
            if completion[-1] not in target.end_token_ids
        ],
        "story": stories,
        "again": [stories[place - 1][-DISTURBING:] + each for place, each in enumerate(stories)],
    }


def edits(prompts: Sequence[Tokens], line_break: Tokens) -> list[Tokens]:
    """Make tasks that each ask to change one token in a text of several prompts."""
    rng, found = random.Random(0), []
    for place in range(0, len(prompts), JOINED):
        text = [token for prompt in prompts[place : place + JOINED] for token in prompt]
        old, new = rng.choice(text), rng.choice(rng.choice(prompts))
        found.append(tuple(task(text, old, new, line_break)))
    return found


async def measure_all(folder: Path, prompts: int, count: int) -> list[Figures]:
    """Measure every task, drafter and draft shape at every temperature."""
    async with serving(folder) as target:
        asked, rows = await tasks(folder, target, prompts), list[Figures]()
        texts = [text for each in asked.values() for text in each]
        for temperature in TEMPERATURES:
            sampling = SamplingParams(temperature)
            completions = await target.complete(texts, count, sampling, SHAPES["chain of 8"])
            pairs = zip(texts, completions, strict=True)
            answers = iter([(text, answer) for text, (answer, _) in pairs])
            answered = {name: [next(answers) for _ in each] for name, each in asked.items()}
            rows += judge(answered, temperature)
    return rows


def judge(answered: dict[str, Answered], temperature: float) -> list[Figures]:
    """Replay the answers with every drafter and draft shape, and return the rows of results."""
    rows = list[Figures]()
    for name, shape in SHAPES.items():
        drafters: dict[str, Begin] = {
            "suffix": partial(Suffix, Sources.of_all(RECENT_TOKENS)),
            "text alone": partial(Suffix, Sources.of_all()),
            "transformers": PromptLookup,
        }
        for drafter, begin in drafters.items():
            for task_name, texts in answered.items():
                count = Count()
                for prompt, answer in texts:
                    replay(begin(shape, prompt), prompt, answer, count)
                tokens = sum(len(answer) for _, answer in texts)
                rows.append(Figures(task_name, drafter, name, temperature, tokens, count))
    return rows


def table(rows: Sequence[Figures]) -> Table:
    """Return a table to print, with the accepted tokens per round for each draft shape."""
    shown = Table("T", "task", "drafter", "tokens", *SHAPES, "without\na draft", box=None)
    for row in rows:
        if row.shape != next(iter(SHAPES)):
            continue
        same = [
            each.count
            for each in rows
            if (each.task, each.drafter, each.temperature)
            == (row.task, row.drafter, row.temperature)
        ]
        shown.add_row(
            *(f"{row.temperature:g}", row.task, row.drafter, str(row.tokens)),
            *(f"{count.accepted_per_round:.2f}" for count in same),
            f"{same[-1].without_a_draft / max(1, same[-1].rounds):.0%}",
        )
    return shown


def entry(row: Figures) -> dict[str, Any]:
    """Return the fields of a row for the JSON file."""
    return asdict(row) | {"accepted_per_round": row.count.accepted_per_round}


def main(
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    prompts: Annotated[
        int, typer.Option(help="number of story prompts or questions", min=1, max=story_count())
    ] = 48,
    max_new_tokens: Annotated[int, typer.Option(help="maximum tokens of an answer", min=2)] = 64,
    json: report.JsonFile = None,
) -> None:
    """Count accepted tokens per round of drafts made without a model, by task and draft shape."""
    configure_logging("warning")
    logging.disable_progress_bar()
    try:
        rows = asyncio.run(measure_all(target, prompts, max_new_tokens))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    where = described("one thread per model")
    what = f"{prompts} prompts, up to {max_new_tokens} tokens each"
    report.publish(
        f"{target.name}, {what}: {where}, float32", table(rows), [entry(row) for row in rows], json
    )


if __name__ == "__main__":
    typer.run(main)
