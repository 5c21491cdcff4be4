"""Send requests at a given rate and with limited concurrency, and choose which of them are sent
without drafts.

This module is independent of the protocol: the function that sends one request is an argument.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from tandem.benchmarks.serve.prompts import Prompt
from tandem.benchmarks.serve.record import Record

Ask = Callable[[Prompt, bool], Awaitable[Record]]


@dataclass(frozen=True, slots=True)
class Load:
    """How requests are sent: on average `rate` per second, and at most `at_once` concurrently. With
    an infinite rate, all requests are sent at once.
    """

    rate: float
    at_once: int | None
    seed: int

    def pauses(self, count: int) -> list[float]:
        """Draw random waiting times before each request, in seconds, as in a Poisson process."""
        rng = random.Random(self.seed)
        finite = self.rate != float("inf")
        return [rng.expovariate(self.rate) if finite else 0.0 for _ in range(count)]


def blocks(count: int, turns: int, baseline: bool) -> Iterator[tuple[range, bool]]:
    """Split `count` requests into `turns` parts. Yield the indices of each part, and whether to
    send the part with drafts.

    If `baseline` is true, each part is yielded twice: once with drafts and once without. The order
    alternates from part to part, so that a gradual change in the machine's speed affects requests
    with and without drafts alike.
    """
    size = -(-count // turns)
    for turn, start in enumerate(range(0, count, size)):
        part = range(start, min(start + size, count))
        order = [True, False] if turn % 2 == 0 else [False, True]
        for drafts in order if baseline else [True]:
            yield part, drafts


async def send(
    load: Load, prompts: Sequence[Prompt], drafts: bool, ask: Ask, done: Callable[[], None]
) -> tuple[list[Record], float]:
    """Send all requests, with or without drafts. Returns a record of each request, and the seconds
    from the start until the last request has ended.
    """
    places = asyncio.Semaphore(load.at_once) if load.at_once else nullcontext()

    async def one(prompt: Prompt) -> Record:
        async with places:
            record = await ask(prompt, drafts)
        done()
        return record

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for prompt, pause in zip(prompts, load.pauses(len(prompts)), strict=True):
            await asyncio.sleep(pause)
            tasks.append(group.create_task(one(prompt)))
    return [task.result() for task in tasks], time.perf_counter() - began
