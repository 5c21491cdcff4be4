"""Measure what a faulty drafter costs: one that is slow, hangs, sends nonsense or has been killed.
During the fault, streams with drafts alternate with streams without drafts. The benchmark also
measures how soon drafts are accepted again after the fault.

The speed of a stream is measured after its first 32 tokens, because Tandem may need that long to
notice the fault.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Annotated

import typer
from rich.table import Table

from tandem import AsyncClient, models
from tandem.benchmarks.chaos import victim
from tandem.benchmarks.chaos.system import DRAFTER, Member, running
from tandem.benchmarks.figures import report
from tandem.benchmarks.peers.prompts import tokenised
from tandem.client.client import Stream
from tandem.protos.errors import TandemError

WARM_UP_TOKENS = 32  # a stream's speed is measured after this many tokens
BACK_SECONDS = 30.0
FAULTS = {
    "none": (),
    "slow by .2 s a pass": (victim.SLOW, victim.RECOVER),
    "slow by 2 s a pass": (victim.CRAWL, victim.RECOVER),
    "hangs": (victim.HANG, victim.RECOVER),
    "suspended": (signal.SIGSTOP, signal.SIGCONT),
    "sends garbage": (victim.GARBAGE, victim.RECOVER),
    "sends twice as much": (victim.TWICE, victim.RECOVER),
    "killed": (signal.SIGKILL,),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """The measurements of one fault. In each turn, the speedup is the tokens per second with drafts
    divided by the tokens per second without drafts. `ratio` is the median of the speedups of all
    turns, and `least` is the lowest speedup. `back` is the seconds from the end of the fault until
    drafts are accepted again.
    """

    fault: str
    rule: str
    streams: int
    ratio: float
    least: float
    back: float


@contextmanager
def suffering(drafter: Member, signals: Sequence[int]) -> Iterator[None]:
    """Make a drafter faulty inside this context."""
    for number in signals[:1]:
        drafter.signal(number)
    try:
        yield
    finally:
        for number in signals[1:]:
            drafter.signal(number)


class Streams:
    """Runs several streams concurrently, with different prompts."""

    def __init__(self, client: AsyncClient, prompts: list[list[int]], tokens: int) -> None:
        self._client = client
        self._prompts = prompts
        self._tokens = tokens

    async def speed(self, rule: str, levels: int | None, count: int) -> float:
        """Run `count` streams concurrently, and return the mean tokens per second of a stream."""
        streams = (self._one(number, rule, levels) for number in range(count))
        speeds = await asyncio.gather(*streams)
        return sum(speeds) / len(speeds)

    async def until_accepted(self, rule: str) -> float:
        """Return the seconds until a step yields at least three tokens, or infinity if no step does
        so within BACK_SECONDS.
        """
        began = monotonic()
        while monotonic() - began < BACK_SECONDS:
            async with self._stream(0, rule, None) as stream:
                async for chunk in stream:
                    if len(chunk.token_ids) > 2:
                        return monotonic() - began
        return float("inf")

    def _stream(self, number: int, rule: str, levels: int | None) -> Stream:
        return self._client.stream(
            self._prompts[number % len(self._prompts)],
            rule=rule,
            num_speculative_tokens=levels,
            seed=number,
            max_new_tokens=self._tokens,
            ignore_eos=True,
        )

    async def _one(self, number: int, rule: str, levels: int | None) -> float:
        began = ended = 0.0
        length = first = 0
        async with self._stream(number, rule, levels) as stream:
            async for chunk in stream:
                ended, length = monotonic(), chunk.completion_tokens
                if not began and length >= WARM_UP_TOKENS:
                    began, first = ended, length
        return (length - first) / (ended - began)


async def compare(
    streams: Streams, drafter: Member, fault: str, rule: str, count: int, turns: int
) -> Figures:
    """Compare the speed of streams with and without drafts during a fault, then measure how soon
    drafts are accepted again.
    """
    ratios = []
    await drafter.serving.wait()
    await streams.until_accepted(rule)
    with suffering(drafter, FAULTS[fault]):
        for _ in range(turns):
            plain = await streams.speed(rule, 0, count)
            ratios.append(await streams.speed(rule, None, count) / plain)
    await drafter.serving.wait()
    back = await streams.until_accepted(rule)
    return Figures(fault, rule, count, median(ratios), min(ratios), back)


def table(found: Sequence[Figures]) -> Table:
    """Format the results as a table."""
    shown = Table("drafter", "rule", "streams", "of plain", "least", "back after, s")
    for each in found:
        ratios = f"{each.ratio:.2f}", f"{each.least:.2f}"
        shown.add_row(each.fault, each.rule, str(each.streams), *ratios, f"{each.back:.1f}")
    return shown


def main(
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory of the drafter")] = models.DRAFT,
    rules: Annotated[str, typer.Option("--rule", help="with commas")] = "match,reject",
    streams: Annotated[str, typer.Option(help="numbers of parallel streams, with commas")] = "1,8",
    tokens: Annotated[int, typer.Option(help="tokens of a stream")] = 200,
    turns: Annotated[int, typer.Option(help="turns with drafts and without")] = 3,
    faults: Annotated[str, typer.Option("--fault", help="with commas")] = ",".join(FAULTS),
    file: report.JsonFile = None,
) -> None:
    """Compare the speed with a faulty drafter to the speed without drafts."""
    if unknown := set(faults.split(",")) - set(FAULTS):
        raise SystemExit(f"error: --fault {unknown.pop()!r} is none of: {', '.join(FAULTS)}")

    async def whole() -> list[Figures]:
        async with (
            running(target, draft, 1, 1, 1) as system,
            AsyncClient(*system.addresses) as client,
        ):
            prompts = [list(prompt) for prompt in tokenised(target, 8)]
            some, (drafter,) = Streams(client, prompts, tokens), system.members[DRAFTER]
            found = []
            for rule, count, fault in product(*(x.split(",") for x in (rules, streams, faults))):
                if victim.SPOILS.keys() & set(FAULTS[fault]) and rule != "match":
                    continue  # rules except `match` need distributions, which this fault drops
                found.append(await compare(some, drafter, fault, rule, int(count), turns))
                typer.echo(found[-1], err=True)
            return found

    try:
        found = asyncio.run(whole())
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    heading = report.title(target, draft, f"{tokens} tokens, {turns} turns")
    report.publish(heading, table(found), [asdict(each) for each in found], file)


if __name__ == "__main__":
    typer.run(main)
