"""A model of the model: a forward pass of zeros that can be held and can fail, and jobs for it."""

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
    """Tokens to be fed to a new session, with logits for all."""
    return Segment(table, 0, tokens, tree.chain(len(tokens)), len(tokens))


def steps(count: int, tokens: int = 1, table: PageTable = TABLE) -> Job:
    """A job that takes some steps and answers with the shapes of its logits."""
    shapes = []
    for _ in range(count):
        logits = yield segment(*range(tokens), table=table)
        shapes.append(tuple(logits.shape))
    return shapes


class Machine:
    """A forward pass that is held until it is open, that fails at a step if told to, and that may
    have a clock of its own.
    """

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began = threading.Event()
        self.fails_at: int | None = None
        self.between: Callable[[], None] = lambda: None  # called in every step, on its thread
        self.wait: Callable[[], None] = lambda: None  # until a pass that was launched is done
        self.now = 0.0
        self.costs = (0.0, 0.0)  # seconds for a step and a token
        self.batches: list[list[Segment]] = []
        self.reports: list[StepReport] = []
        self.idle: list[str] = []
        self.wanted: list[list[bytes]] = []

    @property
    def sizes(self) -> list[int]:
        """How many sessions were in each step."""
        return [len(batch) for batch in self.batches]

    def fed(self, table: PageTable) -> list[Segment]:
        """What was fed to a KV range, in order."""
        return [segment for batch in self.batches for segment in batch if segment.table is table]

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Zeros, once the machine is open."""
        self.began.set()
        assert self.open.wait(LIMIT)
        self.between()
        self.now += self.costs[0] + self.costs[1] * sum(len(own.tokens) for own in segments)
        self.batches.append(list(segments))
        if len(self.batches) == self.fails_at:
            raise RuntimeError("out of memory near a secret")
        return [torch.zeros(segment.num_logits, VOCABULARY) for segment in segments]

    def clock(self) -> float:
        """Seconds, if only steps take time; looking takes hardly any."""
        self.now += 1e-6
        return self.now

    def rest(self, wanted: Sequence[bytes]) -> None:
        """What the thread does when it has time; for whose sessions calls wait."""
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
        """A thread whose first step is held by a job of its own, so that what is queued now meets
        in the next.
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
    """A coroutine that waits for a job."""
    return asyncio.create_task(thread.run(owner, start))


async def settle() -> None:
    """Let every coroutine run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def results(*tasks: asyncio.Task[object]) -> list[object]:
    """What the tasks return or raise; they must not hang."""
    async with asyncio.timeout(LIMIT):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def answers(machine: Machine, *tasks: asyncio.Task[object]) -> list[object]:
    """The same, when all have been queued, of a machine that is opened then."""
    await settle()
    machine.open.set()
    return await results(*tasks)
