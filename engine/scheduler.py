"""The model thread: every job that waits or runs gets its share of the next forward pass.

Verifying takes one step, drafting one per level, a long prompt several, beside the others' work,
and a new job joins at the next step; there are no phases. The event loop only queues and awaits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
import torch

from engine.batch import Limits, Pace, compose, is_decoding, is_long, load
from engine.cost import CostModel, Load
from engine.plan import Segment
from engine.returns import Returns
from engine.task import Job, Task, pointless, startable
from protos.errors import Busy, Internal, Unavailable

LIGHT = Load.chunk(1, 0)
Forward = Callable[[Sequence[Segment]], list[torch.Tensor]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one forward pass did."""

    sessions: int
    tokens: int
    seconds: float
    queue_seconds: list[float]
    cost_error: float


class ModelThread:
    """Owns the model and its sessions: nothing else may touch them while it runs. `idle` is called
    between steps, with those for whose sessions calls wait.
    """

    def __init__(
        self,
        forward: Forward,
        limits: Limits,
        observe: Callable[[StepReport], None],
        idle: Callable[[Sequence[bytes]], None],
        queue_limit: int = 1024,
    ) -> None:
        self._forward, self._limits, self._observe, self._idle = forward, limits, observe, idle
        self._queue_limit = queue_limit
        self._cost = CostModel()
        self._pace = Pace()
        self._steps = 0
        self._returns = Returns()
        self._waiting: deque[Task] = deque()
        self._running: list[Task] = []
        self._stepping: list[Task] = []  # of them, those in the step
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

    async def run(
        self, owner: bytes, start: Callable[[], Job | None], closing: bool = False
    ) -> Any:
        """Queue a job of a session and await its answer. `start` is called on the model thread. A
        job for `closing` the session is taken however long the queue, and done in any case.

        Raises what the job raises, Busy if the queue is full, Unavailable when stopping. Cancelling
        drops a job that waits; one that runs is finished for the session's next call, or ended
        between two steps if that closes it.
        """
        task = Task(owner, start, Future(), time.perf_counter(), closing)
        with self._wake:
            if self._stopping:
                raise Unavailable("the service is stopping")
            if len(self._waiting) >= self._queue_limit and not closing:
                raise Busy(f"{self._queue_limit} calls are waiting")
            self._waiting.append(task)
            self._wake.notify()
        answer = asyncio.wrap_future(task.answer)
        if closing:
            return await asyncio.shield(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            with self._wake, suppress(ValueError):
                task.deserted = True
                self._waiting.remove(task)
            raise

    @property
    def token_seconds(self) -> float:
        """What one more token costs in a step, as far as is known."""
        return self._cost.token_seconds

    def _loop(self) -> None:
        try:
            with torch.inference_mode():
                while not self._stopping:
                    self._turn()
        finally:  # whoever comes later is told at once
            with self._wake:
                self._stopping, left = True, [*self._stepping, *self._running, *self._waiting]
                self._abandon(left, Unavailable("the service is stopping"))

    def _turn(self) -> None:
        """Whoever waits may start, and there is a step; if it fails, those in it fail alone."""
        try:
            if self._collect():
                self._step()
        except Exception as error:
            log.error("a step failed", exc_info=error)
            failed = Internal("the forward pass failed; see the server's log")
            self._abandon(self._stepping, failed)
            self._running = [task for task in self._running if task not in self._stepping]

    def _abandon(self, tasks: Sequence[Task], error: Exception) -> None:
        """Fail every task that has no answer yet."""
        for task in tasks:
            with suppress(InvalidStateError):  # it has an answer, or nobody waits any more
                task.fail(error)

    def _collect(self) -> bool:
        """Wait for work and start what may start; False when stopping."""
        with self._wake:
            while not (self._waiting or self._running or self._stopping):
                self._wake.wait(timeout=1.0)
                self._idle(())
            self._gather()
            if self._stopping:
                return False
            ending = pointless(self._waiting, self._running)
            self._running = [task for task in self._running if task not in ending]
            wanted = [task.owner for task in self._waiting]
            starting = startable(self._waiting, self._running)
            for task in starting:
                self._waiting.remove(task)
        self._stepping = starting  # they fail with what comes now
        for task in ending:
            task.end(Unavailable("nobody waits for it"))
        self._idle(wanted)
        for task in starting:
            if task.answer.set_running_or_notify_cancel():
                self._returns.back(task.owner, task.arrived)
                waited = time.perf_counter() - task.arrived
                task.fed = self._steps  # behind whoever waits for longer
                task.begin()
                if task.segment:
                    self._running.append(task)
                    self._queued.append(waited)
        return True

    def _gather(self) -> None:
        """Wait a moment for those who will soon be back, unless others than long prompts are at
        work meanwhile.
        """
        if not all(task.partly or is_long(task.segment) for task in self._running if task.segment):
            return
        while not self._stopping:
            here = {task.owner for task in self._waiting}
            if (left := self._returns.wait(here, time.perf_counter())) <= 0:
                break
            self._wake.wait(left)

    def _step(self) -> None:
        """One forward pass over what fits of the running tasks, least recently fed first."""
        tasks = sorted((t for t in self._running if t.segment), key=lambda task: task.fed)
        self._running = self._stepping = tasks
        if not tasks:
            return
        began = time.perf_counter()
        wanted = [task.segment for task in tasks if task.segment]
        chosen = compose(wanted, self._cost, self._limits, self._pace.at(began))
        self._stepping = [tasks[index] for index, _ in chosen]
        segments = [segment for _, segment in chosen]
        logits = self._forward(segments)
        seconds = time.perf_counter() - began
        self._account(segments, seconds)
        self._steps += 1
        for task, segment, rows in zip(self._stepping, segments, logits, strict=True):
            task.fed = self._steps
            task.advance(segment, rows)
        self._running = [task for task in tasks if task.segment]
        answered = [task.owner for task in tasks if not task.segment]
        self._returns.answered(answered, time.perf_counter(), self._cost.predict(LIGHT))

    def _account(self, segments: Sequence[Segment], seconds: float) -> None:
        """Learn from a step and report it, before anyone has answers."""
        total = sum(map(load, segments), Load())
        self._cost.learn(total, seconds)
        if decoding := [load(segment) for segment in segments if is_decoding(segment)]:
            self._pace.saw(self._cost.predict(sum(decoding, Load())), time.perf_counter())
        queued, self._queued = self._queued, []
        self._observe(StepReport(len(segments), total.tokens, seconds, queued, self._cost.error))
