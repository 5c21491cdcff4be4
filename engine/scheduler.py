"""The model thread: every job that waits or runs gets its share of the next forward pass.

A job is a generator: it yields the segment that it wants fed, receives the logits, and returns its
answer. Verifying takes one step, drafting one per level, and a new job joins at the next step;
there are no phases. The event loop only queues and awaits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
import torch

from engine.plan import Segment
from protos.errors import Busy, Internal, Unavailable

Job = Generator[Segment, torch.Tensor, Any]
Forward = Callable[[Sequence[Segment]], list[torch.Tensor]]

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Task:
    """A job, whose turn on a session it is, and who waits for it."""

    owner: bytes
    start: Callable[[], Job | None]
    answer: Future[Any]
    arrived: float
    job: Job | None = None
    segment: Segment | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one forward pass did."""

    sessions: int
    tokens: int
    seconds: float
    queue_seconds: list[float]


def admit(waiting: Sequence[Task], running: Sequence[Task], most: int) -> list[Task]:
    """Which waiting tasks start now: in order, one at a time per session, at most `most` at work.
    Pure.
    """
    owners = {task.owner for task in running}
    chosen: list[Task] = []
    for task in waiting:
        if len(running) + len(chosen) >= most:
            break
        if task.owner not in owners:
            owners.add(task.owner)
            chosen.append(task)
    return chosen


class ModelThread:
    """Owns the model and its sessions: nothing else may touch them while it runs."""

    def __init__(
        self,
        forward: Forward,
        most: int,
        observe: Callable[[StepReport], None],
        idle: Callable[[Callable[[bytes], bool]], None],
        queue_limit: int = 1024,
    ) -> None:
        self._forward, self._most, self._observe, self._idle = forward, most, observe, idle
        self._queue_limit = queue_limit
        self._waiting: deque[Task] = deque()
        self._running: list[Task] = []
        self._queued: list[float] = []  # seconds that the tasks started since the last step waited
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="model", daemon=True)

    def __enter__(self) -> ModelThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    async def run(self, owner: bytes, start: Callable[[], Job | None], always: bool = False) -> Any:
        """Queue a job of a session and await its answer. `start` is called on the model thread.
        What frees room is taken `always`, however long the queue.

        Raises what the job raises, Busy if the queue is full, Unavailable when stopping. Cancelling
        drops a job that waits; one that runs is finished and its answer dropped.
        """
        task = Task(owner, start, Future(), time.perf_counter())
        with self._wake:
            if self._stopping:
                raise Unavailable("the service is stopping")
            if len(self._waiting) >= self._queue_limit and not always:
                raise Busy(f"{self._queue_limit} calls are waiting")
            self._waiting.append(task)
            self._wake.notify()
        answer = asyncio.wrap_future(task.answer)
        if always:  # done even if nobody waits for it any more
            return await asyncio.shield(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            with self._wake, suppress(ValueError):
                self._waiting.remove(task)
            raise

    def _loop(self) -> None:
        with torch.inference_mode():
            while not self._stopping:
                try:
                    if self._collect():
                        self._step()
                except Exception as error:
                    log.error("a step failed", exc_info=error)
                    self._abandon(
                        self._running, Internal("the forward pass failed; see the server's log")
                    )
                    self._running = []
        with self._wake:
            self._abandon([*self._running, *self._waiting], Unavailable("the service is stopping"))

    def _abandon(self, tasks: Sequence[Task], error: Exception) -> None:
        """Fail every task that has no answer yet."""
        for task in tasks:
            with suppress(InvalidStateError):  # it has an answer, or nobody waits any more
                _fail(task, error)

    def _collect(self) -> bool:
        """Wait for work and start what may start; False when stopping."""
        with self._wake:
            while not (self._waiting or self._running or self._stopping):
                self._wake.wait(timeout=1.0)
                self._idle(lambda _: False)
            if self._stopping:
                return False
            admitted = admit(self._waiting, self._running, self._most)
            for task in admitted:
                self._waiting.remove(task)
        for task in admitted:
            if task.answer.set_running_or_notify_cancel():
                self._running.append(task)
                self._queued.append(time.perf_counter() - task.arrived)
                _begin(task)
        owners = {task.owner for task in self._running}
        self._idle(owners.__contains__)
        return True

    def _step(self) -> None:
        """One forward pass over all running tasks."""
        tasks = self._running = [task for task in self._running if task.segment]
        if not tasks:
            return
        segments = [task.segment for task in tasks if task.segment]
        began = time.perf_counter()
        logits = self._forward(segments)
        seconds = time.perf_counter() - began
        queued, self._queued = self._queued, []
        fed = sum(len(segment.tokens) for segment in segments)
        self._observe(StepReport(len(segments), fed, seconds, queued))  # before anyone has answers
        for task, rows in zip(tasks, logits, strict=True):
            _advance(task, rows)
        self._running = [task for task in tasks if task.segment]


def _begin(task: Task) -> None:
    """Start a task's job; one that needs no forward pass is done at once."""
    try:
        task.job = task.start()
        if task.job is None:
            task.answer.set_result(None)
        else:
            task.segment = next(task.job)
    except StopIteration as done:
        task.answer.set_result(done.value)
    except Exception as error:
        _fail(task, error)


def _advance(task: Task, logits: torch.Tensor) -> None:
    """Give a task its logits; it either wants another step or is done."""
    assert task.job is not None
    try:
        task.segment = task.job.send(logits)
    except StopIteration as done:
        task.segment = None
        task.answer.set_result(done.value)
    except Exception as error:
        _fail(task, error)


def _fail(task: Task, error: Exception) -> None:
    task.segment = None
    if task.job is not None:
        task.job.close()
    task.answer.set_exception(error)
