"""Measure how much a long prompt delays other sessions that are decoding. The benchmark compares
the gaps between their tokens before the prompt arrives and while the prompt is processed.

Sessions decode in lockstep with drafts of random tokens. A session's next draft is ready as soon as
the previous step ends. After some seconds, the long prompt arrives. There is no transport and no
drafter, because only the scheduler is measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from prometheus_client import CollectorRegistry
from rich.table import Table
from transformers.utils import logging

from tandem.benchmarks.engine import subject
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import Host, hosting
from tandem.engine.schedule.task import Job
from tandem.protos.errors import TandemError, Unusable
from tandem.protos.streams import Commit, Decoding, Proposal
from tandem.protos.types import Context, Draft, SamplingParams
from tandem.protos.wire.drafting import proposal_of
from tandem.verifier_service.decoding import DecodeJob
from tandem.verifier_service.sources import Sources

GREEDY = SamplingParams()
CONTEXT = 4096


@dataclass(slots=True)
class Decoder:
    """A decoding session and the stream of its job. `ends` has the times at which its steps ended,
    and `tokens` has its text so far. Every step has a draft of `drafted` random tokens, almost none
    of which are accepted.
    """

    host: Host
    name: bytes
    rng: random.Random
    drafted: int
    ends: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    inbox: deque[Proposal] = field(default_factory=deque)
    paused: bool = False
    turn: int = 0

    async def decode(self) -> None:
        """Decode until cancelled. When the text reaches the end of the context, it is cut to its
        first half, and decoding continues.
        """
        limit = self.host.sessions.context_length
        while True:
            await self._run(limit)
            del self.tokens[limit // 2 :]

    async def decode_one(self) -> None:
        """Decode one token."""
        await self._run(len(self.tokens) + 1)

    def emit(self, commit: Commit) -> None:
        """Record the end of a step, and make the next draft."""
        self.ends.append(time.perf_counter())
        self.tokens += commit.tokens
        self._draft()

    async def _run(self, until: int) -> None:
        self.turn += 1
        self.inbox.clear()
        self._draft()
        context = Context(self.name, self.turn, 0, tuple(self.tokens))
        opening = Decoding(context, GREEDY, until, lockstep=True)
        stream: Any = self

        def start() -> Job:
            sources = Sources.of_all()
            return DecodeJob(self.host.sessions, opening, stream, sources, time.monotonic).run()

        await self.host.thread.run(self.name, start)

    def _draft(self) -> None:
        draft = Draft.chain(some_tokens(self.rng, self.host, self.drafted))
        self.inbox.append(proposal_of(draft, len(self.tokens)))

    def gaps(self, since: float, until: float) -> list[float]:
        """Return the seconds between the ends of steps in the period from `since` to `until`."""
        pairs = zip(self.ends, self.ends[1:], strict=False)
        return [later - end for end, later in pairs if since <= later and end <= until]


def some_tokens(rng: random.Random, host: Host, count: int) -> tuple[int, ...]:
    """Return random token ids from the model's vocabulary."""
    return tuple(rng.randrange(host.runner.model.vocab_size) for _ in range(count))


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of the gaps between decoding steps in one period, in seconds."""

    name: str
    steps: int
    median: float
    longest: float
    usual: float  # median gap in the period before the prompt


async def run(
    host: Host, sessions: int, drafted: int, prompt: int, seconds: float
) -> tuple[list[Figures], float]:
    """Measure gaps between decoding steps, first without and then with a long prompt. Returns the
    gaps of both periods, and the time to first token of the long prompt in seconds.
    """
    rng = random.Random(0)
    decoders = [Decoder(host, bytes([i]) * 16, random.Random(i), drafted) for i in range(sessions)]
    for decoder in decoders:
        limit = min(448, host.sessions.context_length // 2)
        decoder.tokens += some_tokens(rng, host, rng.randint(min(64, limit), limit))
    loops = [asyncio.create_task(decoder.decode()) for decoder in decoders]
    await asyncio.sleep(seconds)  # time to process the prompts and to learn step costs
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    arrival = time.perf_counter()
    newcomer = Decoder(host, b"n" * 16, rng, 0, tokens=list(some_tokens(rng, host, prompt)))
    await newcomer.decode_one()
    answered = time.perf_counter()
    for loop in loops:
        loop.cancel()
    for ended in await asyncio.gather(*loops, return_exceptions=True):
        if isinstance(ended, Exception):  # CancelledError is ignored
            raise ended
    found = []
    usual = median(gap for decoder in decoders for gap in decoder.gaps(began, arrival))
    for name, since, until in (
        ("alone", began, arrival),
        (f"beside a prompt of {prompt} tokens", arrival, answered),
    ):
        gaps = [gap for decoder in decoders for gap in decoder.gaps(since, until)]
        found.append(Figures(name, len(gaps), median(gaps), max(gaps), usual))
    return found, answered - arrival


def table(found: Sequence[Figures], waited: float) -> Table:
    """Return the results as a table to print."""
    shown = Table("", "steps", "median gap\nms", "longest gap\nms", "longest\nto median", box=None)
    for each in found:
        times = f"{1e3 * each.median:.0f}", f"{1e3 * each.longest:.0f}"
        shown.add_row(each.name, str(each.steps), *times, f"{each.longest / each.usual:.2f}")
    shown.add_row("time to first token of the prompt", "", "", f"{1e3 * waited:.0f}", "")
    return shown


def stretch(folder: Path) -> None:
    """Extend the context of a model beyond the length that it was trained on. The step times of the
    model remain realistic, but the text that it generates does not.
    """
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))


async def measure(
    folder: Path, sessions: int, drafted: int, prompt: int, seconds: float
) -> tuple[list[Figures], float]:
    """Load a model into this process, and measure the gaps. Raises Unusable."""
    config = ModelServiceConfig(model=folder)
    async with hosting(config, "verify", True, CollectorRegistry()) as host:
        if prompt > host.sessions.context_length:
            limit = f"is longer than the model's context, {host.sessions.context_length}"
            raise Unusable(f"prompt {prompt} {limit}")
        return await run(host, sessions, drafted, prompt, seconds)


def main(
    model: Annotated[
        Path | None, typer.Argument(help="model directory; default: the embedded target, enlarged")
    ] = None,
    sessions: Annotated[int, typer.Option(help="sessions that decode")] = 8,
    drafted: Annotated[int, typer.Option(help="draft tokens per step")] = 4,
    prompt: Annotated[int, typer.Option(help="tokens of the long prompt")] = 2000,
    seconds: Annotated[
        float, typer.Option(help="seconds of decoding before the prompt arrives")
    ] = 15.0,
    file: report.JsonFile = None,
) -> None:
    """Measure gaps between the steps of decoding sessions, without and with a long prompt."""
    logging.disable_progress_bar()
    try:
        with subject(model) as (folder, name):
            if model is None:
                stretch(folder)
            found, waited = asyncio.run(measure(folder, sessions, drafted, prompt, seconds))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    heading = f"{sessions} sessions, {drafted} draft tokens each, {name}"
    heading = f"{heading}: {described('one thread')}, float32"
    report.publish(heading, table(found, waited), [asdict(each) for each in found], file)


if __name__ == "__main__":
    typer.run(main)
