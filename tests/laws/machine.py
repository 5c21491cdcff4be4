"""A model of the model: a forward pass of zeros that can be held and can fail, and jobs for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import torch

from engine.plan import Segment
from engine.scheduler import Job, ModelThread, StepReport
from protos import tree

VOCABULARY, MOST, SECONDS = 5, 8, 5.0


def segment(*tokens: int) -> Segment:
    """Tokens to be fed to a new session."""
    return Segment(0, 0, tokens, tree.chain(len(tokens)), len(tokens))


def steps(count: int, tokens: int = 1) -> Job:
    """A job that takes some steps and answers with the shapes of its logits."""
    shapes = []
    for _ in range(count):
        logits = yield segment(*range(tokens))
        shapes.append(tuple(logits.shape))
    return shapes


class Machine:
    """A forward pass that is held until it is open, and that fails at a step if told to."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began = threading.Event()
        self.fails_at: int | None = None
        self.batches: list[int] = []
        self.reports: list[StepReport] = []
        self.idle: list[Callable[[bytes], bool]] = []

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Zeros, once the machine is open."""
        self.began.set()
        assert self.open.wait(SECONDS)
        self.batches.append(len(segments))
        if len(self.batches) == self.fails_at:
            raise RuntimeError("out of memory near a secret")
        return [torch.zeros(segment.wanted, VOCABULARY) for segment in segments]

    @asynccontextmanager
    async def running(self, queue_limit: int = 100) -> AsyncIterator[ModelThread]:
        """A thread whose first step is held by a job of its own, so that what is queued now meets
        in the next.
        """
        with ModelThread(
            self.forward, MOST, self.reports.append, self.idle.append, queue_limit
        ) as thread:
            first = asyncio.create_task(thread.run(b"first", lambda: steps(1)))
            await asyncio.to_thread(self.began.wait, SECONDS)
            try:
                yield thread
            finally:
                self.open.set()
                await asyncio.wait_for(asyncio.gather(first, return_exceptions=True), SECONDS)


def queue(
    thread: ModelThread, owner: bytes, start: Callable[[], Job | None]
) -> asyncio.Task[object]:
    """A coroutine that waits for a job."""
    return asyncio.create_task(thread.run(owner, start))


async def settle() -> None:
    """Let every coroutine run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def results(*tasks: asyncio.Task[object]) -> list[object]:
    """What the tasks return or raise; they must not hang."""
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SECONDS)
