"""The model thread: every job that waits or runs gets its share of the next forward pass.

A new job joins at the next step, and a long prompt is fed beside the others' work; there are no
phases. The event loop only queues, tells that there is something new, and is told what was done.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
import torch

from engine.forward.segment import Segment
from engine.schedule.batch import Batch, Limits, Pace, compose, is_decoding, load
from engine.schedule.cost import CostModel, Load, Rates
from engine.schedule.task import Job, Task, startable
from protos.errors import Busy, Internal, Unavailable

LIGHT = Load.chunk(1, 0)
Forward = Callable[[Sequence[Segment]], list[torch.Tensor]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one forward pass did, and the time since the one before if there was work all along."""

    sessions: int
    tokens: int
    seconds: float
    queue_seconds: list[float]
    cost_error: float
    host_seconds: float | None


class ModelThread:
    """Owns the model and its sessions: nothing else may touch them while it runs. Between steps it
    calls `idle`, with those for whose sessions calls wait, and `settled`; after a pass, `fed`.
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
        self.settled: Callable[[], None] = lambda: None
        self.fed: Callable[[Sequence[tuple[Any, torch.Tensor]]], None] = lambda _: None
        self.rates = Rates()
        self.price = 0.0  # chance that a row more would have had to have in the newest step
        self._cost, self._pace = CostModel(), Pace()
        self._steps = 0
        self._ended = 0.0  # when the newest step did; 0 if the thread has waited since
        self._waiting: deque[Task] = deque()
        self._running: list[Task] = []
        self._stepping: list[Task] = []  # of them, those in the step
        self._queued: list[float] = []  # seconds that the tasks started since the last step waited
        self._wake = threading.Condition()
        self._news = False  # something may have changed for a job that waits
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

    def submit(self, owner: bytes, start: Callable[[], Job | None], closing: bool = False) -> Task:
        """Queue a job of a session; `start` is called on the model thread. One for `closing` the
        session is taken however long the queue. Raises Busy if it is full, Unavailable if stopping.
        """
        task = Task(owner, start, Future(), time.perf_counter(), closing)
        with self._wake:
            if self._stopping:
                raise Unavailable("the service is stopping")
            if len(self._waiting) >= self._queue_limit and not closing:
                raise Busy(f"{self._queue_limit} calls are waiting")
            self._waiting.append(task)
            self._wake.notify()
        return task

    async def run(
        self, owner: bytes, start: Callable[[], Job | None], closing: bool = False
    ) -> Any:
        """The same, and await the answer; raises what the job raises. Cancelling deserts it."""
        task = self.submit(owner, start, closing)
        answer = asyncio.wrap_future(task.answer)
        if closing:
            return await asyncio.shield(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self.desert(task)
            raise

    def desert(self, task: Task) -> None:
        """Nobody waits for a job any more: it is dropped, or ended between two steps."""
        with self._wake:
            task.deserted = self._news = True
            if task in self._waiting:
                self._waiting.remove(task)
                task.answer.cancel()
            self._wake.notify()

    def wake(self) -> None:
        """There may be something new for a job that waits."""
        with self._wake:
            self._news = True
            self._wake.notify()

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
            self._collect()
            self._step()
        except Exception as error:
            log.error("a step failed", exc_info=error)
            self._abandon(self._stepping, Internal("the step failed; see the server's log"))
            self._running = [task for task in self._running if task not in self._stepping]
            self._news = True  # the others go on
        self.settled()

    def _abandon(self, tasks: Sequence[Task], error: Exception) -> None:
        """Fail every task that has no answer yet."""
        for task in tasks:
            with suppress(InvalidStateError):  # it has an answer, or nobody waits any more
                task.fail(error)

    def _collect(self) -> None:
        """Wait until there may be work, and start what may start."""
        with self._wake:
            while not (self._waiting or self._news or self._stopping):
                self._ended = 0.0
                self._wake.wait(timeout=1.0)
                self._idle(())
            self._news = False
            ending = [task for task in self._running if task.deserted]
            self._running = [task for task in self._running if not task.deserted]
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
                self._queued.append(time.perf_counter() - task.arrived)
                task.fed = self._steps  # behind whoever waits for longer
                task.begin()
                self._running += [task] if task.offer else []
                self._news = True

    def _offers(self) -> list[tuple[Task, Segment]]:
        """Who has something to feed, least recently fed first."""
        order = sorted(self._running, key=lambda task: task.fed)
        offers = [(task, segment) for task in order if (segment := task.ready())]
        self._running = [task for task in order if task.offer]
        return offers

    def _gather(self) -> list[tuple[Task, Segment]]:
        """The offers; one that is alone may wait a moment for more rows."""
        offers = self._offers()
        if len(offers) != 1 or offers[0][0].rest or not offers[0][0].offer:
            return offers
        offer, step = offers[0][0].offer, self._cost.predict(LIGHT)
        until = time.perf_counter() + step
        with self._wake:
            while not (self._waiting or self._stopping):
                now = time.perf_counter()
                if (left := min(offer.patience(now, step), until - now)) <= 0:
                    break
                self._wake.wait(left)
        return self._offers()

    def _step(self) -> None:
        """One forward pass over what fits of the offers, with the rows that pay."""
        offers = self._gather()
        tasks, segments = [task for task, _ in offers], [segment for _, segment in offers]
        self._stepping = tasks
        if not tasks:
            return
        began = time.perf_counter()

        def chances(index: int) -> Iterator[float]:
            offer = tasks[index].offer
            return iter(()) if tasks[index].rest or offer is None else offer.chances()

        batch = compose(segments, chances, self._cost, self._limits, self._pace.at(began))
        self.price = batch.price
        self._stepping = [tasks[share.index] for share in batch.shares]
        for task, share in zip(self._stepping, batch.shares, strict=True):
            if share.rows and task.offer:
                share.piece = task.offer.segment(share.rows)
        pieces = [share.piece for share in batch.shares]
        self.settled()  # what was said while they were asked
        host = time.perf_counter() - self._ended if self._ended else None
        began = time.perf_counter()
        logits = self._forward(pieces)
        self._ended = time.perf_counter()
        self._account(batch, self._ended - began, host)
        self._steps += 1
        self.fed([(task.offer, rows) for task, rows in zip(self._stepping, logits, strict=False)])
        for task, share, rows in zip(self._stepping, batch.shares, logits, strict=True):
            task.fed, wanted = self._steps, segments[share.index]
            task.advance(share.piece, rows, bool(share.rows) or share.piece is wanted)
        self._running = [task for task in self._running if task.offer]
        self._news = True

    def _account(self, batch: Batch, seconds: float, host: float | None) -> None:
        """Learn from a step and report it, before anyone has answers."""
        pieces = [share.piece for share in batch.shares]
        total, cost = sum(map(load, pieces), Load()), self._cost
        cost.learn(total, seconds)
        if decoding := [load(piece) for piece in pieces if is_decoding(piece)]:
            self._pace.saw(cost.predict(sum(decoding, Load())), time.perf_counter())
        if len(decoding) == len(pieces):
            self.rates.saw(seconds, sum(piece.wanted for piece in pieces), batch.expected)
        queued, self._queued = self._queued, []
        self._observe(StepReport(len(pieces), total.tokens, seconds, queued, cost.error, host))
