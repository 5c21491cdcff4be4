"""What a long prompt costs those who are decoding: gaps between their tokens, before and while it
is taken in.

Sessions verify drafts of random tokens in a closed loop on the model thread; then a prompt arrives.
No transport, no drafter: the scheduler alone.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry
from rich.table import Table
from transformers.utils import logging

from benchmarks import report
from benchmarks.engine import subject
from engine.config import ModelServiceConfig
from engine.host import Host, hosting
from protos.errors import TandemError, Unusable
from protos.types import Context, Draft, SamplingParams
from verifier_service.verifier import verify

GREEDY = SamplingParams()
CONTEXT = 4096


@dataclass(slots=True)
class Decoder:
    """A session in a closed loop: when its rounds ended."""

    host: Host
    name: bytes
    rng: random.Random
    ends: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    epoch: int = 0
    turn: int = 0

    async def round(self, drafted: int) -> None:
        """Verify a draft of random tokens; almost none stand. A text that reaches the end of the
        context goes on at its middle.
        """
        self.turn += 1
        if len(self.tokens) + drafted >= self.host.sessions.context_length:
            self.cached = self.host.sessions.context_length // 2
            del self.tokens[self.cached + 1 :]
        fresh = tuple(self.tokens[self.cached :])
        context = Context(self.name, self.turn, self.cached, fresh, self.epoch)
        draft = Draft.chain(some_tokens(self.rng, self.host, drafted))
        verdict = await self.host.thread.run(
            self.name, lambda: verify(self.host.sessions, context, draft, GREEDY)
        )
        self.tokens += [*(draft.tokens[node] for node in verdict.accepted), verdict.next_token]
        self.cached, self.epoch = verdict.cached_len, verdict.epoch
        self.ends.append(time.perf_counter())

    def gaps(self, since: float, until: float) -> list[float]:
        """Seconds between rounds that ended in a stretch of time."""
        pairs = zip(self.ends, self.ends[1:], strict=False)
        return [later - end for end, later in pairs if since <= later and end <= until]


def some_tokens(rng: random.Random, host: Host, count: int) -> tuple[int, ...]:
    """Random token ids of the model."""
    return tuple(rng.randrange(host.forward.model.vocab_size) for _ in range(count))


@dataclass(frozen=True, slots=True)
class Figures:
    """Gaps in a stretch of time, in seconds."""

    name: str
    rounds: int
    median: float
    longest: float
    usual: float  # the median without the prompt


async def run(
    host: Host, sessions: int, drafted: int, prompt: int, seconds: float
) -> tuple[list[Figures], float]:
    """Decode, then decode beside a long prompt; and after how many seconds that was answered."""
    rng = random.Random(0)
    decoders = [Decoder(host, bytes([i]) * 16, random.Random(i)) for i in range(sessions)]
    for decoder in decoders:
        most = min(448, host.sessions.context_length // 2)
        decoder.tokens += some_tokens(rng, host, rng.randint(min(64, most), most))
    stopping = asyncio.Event()

    async def decode(decoder: Decoder) -> None:
        while not stopping.is_set():
            await decoder.round(drafted)

    loops = [asyncio.create_task(decode(decoder)) for decoder in decoders]
    await asyncio.sleep(seconds)  # the first prompts are taken in, and the cost model learns
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    arrival = time.perf_counter()
    newcomer = Decoder(host, b"n" * 16, rng, tokens=list(some_tokens(rng, host, prompt)))
    await newcomer.round(0)
    answered = time.perf_counter()
    stopping.set()
    await asyncio.gather(*loops)
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
    """What people see."""
    shown = Table("", "rounds", "median gap\nms", "longest gap\nms", "longest\nto median", box=None)
    for each in found:
        times = f"{1e3 * each.median:.0f}", f"{1e3 * each.longest:.0f}"
        shown.add_row(each.name, str(each.rounds), *times, f"{each.longest / each.usual:.2f}")
    shown.add_row("the prompt's first token after", "", "", f"{1e3 * waited:.0f}", "")
    return shown


def stretch(folder: Path) -> None:
    """Give a model a longer context than it learned: its costs are real, its texts are not."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))


async def measure(
    folder: Path, sessions: int, drafted: int, prompt: int, seconds: float
) -> tuple[list[Figures], float]:
    """Serve a model in this process while gaps are measured; raises Unusable."""
    config = ModelServiceConfig(model=folder)
    async with hosting(config, "verify", True, CollectorRegistry()) as host:
        if prompt > host.sessions.context_length:
            limit = f"is above the model's context, {host.sessions.context_length}"
            raise Unusable(f"prompt {prompt} {limit}")
        return await run(host, sessions, drafted, prompt, seconds)


def main(
    model: Annotated[
        Path | None, typer.Argument(help="model directory; none: the embedded target, grown")
    ] = None,
    sessions: Annotated[int, typer.Option(help="that decode")] = 8,
    drafted: Annotated[int, typer.Option(help="draft tokens per round")] = 4,
    prompt: Annotated[int, typer.Option(help="tokens of the long prompt")] = 2000,
    seconds: Annotated[float, typer.Option(help="of decoding before it")] = 15.0,
    file: Annotated[Path | None, typer.Option("--json", help="figures, for programs")] = None,
) -> None:
    """Gaps between the rounds of decoding sessions, alone and beside a long prompt."""
    logging.disable_progress_bar()
    try:
        with subject(model) as (folder, name):
            if model is None:
                stretch(folder)
            found, waited = asyncio.run(measure(folder, sessions, drafted, prompt, seconds))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    heading = f"{sessions} sessions, {drafted} draft tokens each, {name}"
    heading = f"{heading}: {report.machine('one thread')}, float32"
    report.publish(heading, table(found, waited), [asdict(each) for each in found], file)


if __name__ == "__main__":
    typer.run(main)
