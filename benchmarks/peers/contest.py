"""Let systems take turns at completing prompts, and record the tokens and times of each system."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.progress import track

from tandem.benchmarks.peers.systems import Completion, Prompt, System

CONCURRENCY = 8


@dataclass(slots=True)
class Runs:
    """The runs of one system: the tokens and seconds of each request, and the `wall` seconds of all
    requests. Time in which several requests ran counts only once in `wall`.
    """

    completions: list[Completion] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wall: float = 0.0

    @property
    def tokens(self) -> int:
        """The number of emitted tokens."""
        return sum(len(completion.tokens) for completion in self.completions)

    @property
    def total_speed(self) -> float:
        """The tokens of all requests per second of wall-clock time."""
        return self.tokens / self.wall

    @property
    def median_speed(self) -> float:
        """The median over all requests of the tokens per second of a request."""
        pairs = zip(self.completions, self.seconds, strict=True)
        return median(len(completion.tokens) / seconds for completion, seconds in pairs)

    @property
    def tokens_per_step(self) -> float | None:
        """The mean acceptance length, or None if the system does not report its steps."""
        steps = sum(completion.steps for completion in self.completions)
        return self.tokens / steps if steps else None

    def differing(self, reference: Runs) -> int:
        """Return the number of requests whose tokens differ from those of the reference."""
        right = dict(zip(reference.prompts, reference.completions, strict=True))
        answers = zip(self.prompts, self.completions, strict=True)
        return sum(completion.tokens != right[prompt].tokens for prompt, completion in answers)


@dataclass(frozen=True, slots=True)
class Contest:
    """A comparison of systems. Each system in `alone` serves one request at a time, and the system
    `together` serves several at once.
    """

    alone: Mapping[str, System]
    together: tuple[str, System]
    max_new_tokens: int

    async def warm_up(self, prompt: Prompt) -> None:
        """Let each system in `alone` complete a prompt once, without timing it."""
        for system in self.alone.values():
            await system.complete(prompt, self.max_new_tokens)

    async def run(self, prompts: Sequence[Prompt]) -> dict[str, Runs]:
        """Run all systems on all prompts, in an order that rotates from prompt to prompt."""
        runs = {name: Runs() for name in (*self.alone, self.together[0])}
        names = list(self.alone)
        await self.warm_up(prompts[0])
        for index in track(range(len(prompts)), "measuring", transient=True):
            first = index % len(names)
            for name in names[first:] + names[:first]:
                await timed(
                    self.alone[name], prompts[index : index + 1], self.max_new_tokens, runs[name]
                )
            if index % CONCURRENCY == 0:
                name, system = self.together
                batch = [prompts[(index + place) % len(prompts)] for place in range(CONCURRENCY)]
                await timed(system, batch, self.max_new_tokens, runs[name])
        return runs


async def timed(system: System, prompts: Sequence[Prompt], max_new_tokens: int, runs: Runs) -> None:
    """Complete all prompts concurrently, and add the completions and their times to `runs`."""

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
