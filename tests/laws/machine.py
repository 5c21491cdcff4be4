"""A fake model: a forward pass that returns zeros and can be held or made to fail, and jobs for
it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import torch

from tandem.engine.cache.pages import PageTable
from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import StepLimits
from tandem.engine.schedule.progress import StepReport
from tandem.engine.schedule.scheduler import ModelThread
from tandem.engine.schedule.task import Job
from tandem.protos import tree
from tests.waiting import LIMIT

VOCABULARY, MOST = 5, 8
LIMITS = StepLimits(sessions=MOST, tokens=128)
TABLE = PageTable()


def segment(*tokens: int, table: PageTable = TABLE) -> Segment:
    """Return a segment of tokens for a new session that asks for the logits of all of them."""
    return Segment(table, 0, tokens, tree.chain(len(tokens)), len(tokens))


def steps(count: int, tokens: int = 1, table: PageTable = TABLE) -> Job:
    """A job that takes `count` steps and returns the shapes of the logits that it got."""
    shapes = []
    for _ in range(count):
        logits = yield segment(*range(tokens), table=table)
        shapes.append(tuple(logits.shape))
    return shapes


class Machine:
    """A fake forward pass that can be held, can fail at a given step, and can have its own
    clock.
    """

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began = threading.Event()
        self.fails_at: int | None = None
        self.between: Callable[[], None] = lambda: None  # called in every step, on its thread
        self.wait: Callable[[], None] = lambda: None  # waits until a launched pass is done
        self.now = 0.0
        self.costs = (0.0, 0.0)  # seconds for a step and a token
        self.batches: list[list[Segment]] = []
        self.reports: list[StepReport] = []
        self.idle: list[str] = []
        self.wanted: list[list[bytes]] = []

    @property
    def sizes(self) -> list[int]:
        """Return the number of sessions in each step."""
        return [len(batch) for batch in self.batches]

    def fed(self, table: PageTable) -> list[Segment]:
        """Return the tokens that were fed to a page table, in order."""
        return [segment for batch in self.batches for segment in batch if segment.table is table]

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Return zeros once the machine is open."""
        self.began.set()
        assert self.open.wait(LIMIT)
        self.between()
        self.now += self.costs[0] + self.costs[1] * sum(len(own.tokens) for own in segments)
        self.batches.append(list(segments))
        if len(self.batches) == self.fails_at:
            raise RuntimeError("out of memory near a secret")
        return [torch.zeros(segment.num_logits, VOCABULARY) for segment in segments]

    def clock(self) -> float:
        """Return the time on a clock that only steps advance; reading it advances it hardly at
        all.
        """
        self.now += 1e-6
        return self.now

    def rest(self, wanted: Sequence[bytes]) -> None:
        """Record what the thread does while idle, and for which sessions calls wait."""
        self.wanted.append(list(wanted))
        self.idle.append(threading.current_thread().name)

    def thread(self, queue_limit: int = 100, limits: StepLimits = LIMITS) -> ModelThread:
        """A thread that runs this machine."""
        return ModelThread(
            self.forward, lambda: self.wait(), limits, self.reports.append, self.rest, queue_limit
        )

    @asynccontextmanager
    async def running(
        self, queue_limit: int = 100, limits: StepLimits = LIMITS
    ) -> AsyncIterator[ModelThread]:
        """A thread whose first step is held by a job of its own, so that jobs queued now share the
        next step.
        """
        with self.thread(queue_limit, limits) as thread:
            first = asyncio.create_task(thread.run(b"first", lambda: steps(1)))
            await asyncio.to_thread(self.began.wait, LIMIT)
            try:
                yield thread
            finally:
                self.open.set()
                await results(first)


def queue(
    thread: ModelThread, owner: bytes, start: Callable[[], Job | None]
) -> asyncio.Task[object]:
    """Return a coroutine that queues a job and waits for its result."""
    return asyncio.create_task(thread.run(owner, start))


async def settle() -> None:
    """Let every coroutine run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def results(*tasks: asyncio.Task[object]) -> list[object]:
    """Return what the tasks return or raise; a task that hangs fails the test."""
    async with asyncio.timeout(LIMIT):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def answers(machine: Machine, *tasks: asyncio.Task[object]) -> list[object]:
    """Return the results of tasks that are all queued before the machine is opened."""
    await settle()
    machine.open.set()
    return await results(*tasks)
