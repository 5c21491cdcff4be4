"""The model thread, which feeds all waiting and running jobs in shared forward passes.

A new job joins at the next step. A long prompt is fed in the same passes as the work of other jobs.
The event loop only queues jobs, wakes the thread, and gets the results.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from typing import Any

import structlog
import torch

from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import Batch, StepCosts, StepLimits, compose, load_of
from tandem.engine.schedule.core_waits import thread_seconds
from tandem.engine.schedule.cost import StepLoad
from tandem.engine.schedule.job_queue import JobQueue
from tandem.engine.schedule.progress import Failures, Progress, StepReport
from tandem.engine.schedule.task import Task, startable
from tandem.protos.errors import Internal, Unavailable

SINGLE_TOKEN = StepLoad.chunk(1, 0)
ForwardPass = Callable[[Sequence[Segment]], list[torch.Tensor]]

log = structlog.get_logger()


class ModelThread(JobQueue):
    """The thread that owns the model and its sessions: nothing else may touch them while it runs.
    Between steps, the thread calls `after_step`. It also calls `idle` with the session names of all
    waiting jobs. The thread ends by itself if several steps in a row fail.
    """

    def __init__(
        self,
        forward: ForwardPass,
        wait: Callable[[], None],  # waits until launched passes are done
        limits: StepLimits,
        observe: Callable[[StepReport], None],
        idle: Callable[[Sequence[bytes]], None],
        queue_limit: int = 1024,
        single_token: float = 0.0,  # seconds of a pass over a single token; 0: unknown
    ) -> None:
        super().__init__(queue_limit)
        self._forward = forward
        self._wait = wait
        self._limits = limits
        self._observe = observe
        self._idle = idle
        self.after_step: Callable[[], None] = lambda: None
        self.after_forward: Callable[[Sequence[tuple[Any, torch.Tensor]]], None] = lambda _: None
        # acceptance probability that one more row would have needed in the newest step
        self.price = 0.0
        self.costs = StepCosts()
        self.progress = Progress(time.perf_counter(), single_token=single_token)
        self._steps = 0
        self._failures = Failures()
        self._ended = 0.0  # when the newest pass ended; 0 if the thread was idle since
        self._running: list[Task] = []
        self._stepping: list[Task] = []  # running tasks that are in the step
        self._queued: list[float] = []  # queue times of tasks started since the last step
        self._thread = threading.Thread(target=self._loop, name="model", daemon=True)

    def __enter__(self) -> ModelThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def problem(self, now: float) -> str | None:
        """Return the reason why the thread cannot serve, or None if it can. `now` is the current
        value of `time.perf_counter`.
        """
        going_on = "the model thread ended" if self.ended else self.progress.problem(now)
        return self._failures.problem or going_on

    @property
    def ended(self) -> bool:
        """Whether the thread has ended, so that it will never serve again."""
        return not self._thread.is_alive()

    def _loop(self) -> None:
        try:
            with torch.inference_mode():
                while not (self._stopping or self._failures.problem):
                    self._iterate()
        finally:  # later callers get an error at once
            with self._wake:
                self._stopping, left = True, [*self._stepping, *self._running, *self._waiting]
                self._fail_all(left, Unavailable("the service is stopping"))

    def _iterate(self) -> None:
        """Start waiting jobs and run a step. If the step fails, only the jobs in the step fail."""
        try:
            self._admit()
            self._step()
        except Exception as error:
            log.error("a step failed", exc_info=error)
            if self._failures.too_many(error):
                return  # the thread ends, and other replicas can serve its jobs
            self._fail_all(self._stepping, Internal("the step failed; see the server's log"))
            self._running = [task for task in self._running if task not in self._stepping]
            self._news = True  # the jobs that were not in the step go on
        self.after_step()

    def _fail_all(self, tasks: Sequence[Task], error: Exception) -> None:
        """Fail every task that has no answer yet."""
        for task in tasks:
            with suppress(InvalidStateError):  # the task is answered, or its caller has gone
                task.fail(error)

    def _admit(self) -> None:
        """Wait until there may be work, end cancelled jobs, and start all jobs that may start
        now.
        """
        with self._wake:
            while not (self._waiting or self._news or self._stopping):
                self._ended, self.progress = 0.0, self.progress.rested(time.perf_counter())
                self._wake.wait(timeout=0.5)
                self._idle(())
            self._news, self.progress = False, self.progress.resumed(time.perf_counter())
            ending = [task for task in self._running if task.cancelled]
            self._running = [task for task in self._running if not task.cancelled]
            waiting = [task.owner for task in self._waiting]
            starting = startable(self._waiting, self._running)
            for task in starting:
                self._waiting.remove(task)
        self._stepping = starting  # the tasks that fail if an error is raised from here on
        for task in ending:
            task.end(Unavailable("the caller no longer waits for the answer"))
        self._idle(waiting)
        for task in starting:
            if task.answer.set_running_or_notify_cancel():
                self._queued.append(time.perf_counter() - task.arrived)
                # the task queues behind tasks that were fed longer ago
                task.last_step = self._steps
                task.begin()
                self._running += [task] if task.step_input else []
                self._news = True

    def _ready_inputs(self) -> list[tuple[Task, Segment]]:
        """Return the running tasks that have a segment to feed, and the segments, least recently
        fed first.
        """
        order = sorted(self._running, key=lambda task: task.last_step)
        ready = [(task, segment) for task in order if (segment := task.ready())]
        self._running = [task for task in order if task.step_input]
        return ready

    def _step_inputs(self) -> tuple[list[tuple[Task, Segment]], float]:
        """Return the tasks and segments of the next step, and how many seconds the thread waited
        for more rows. If there is only one step input, the thread may briefly wait for more draft
        rows.
        """
        ready = self._ready_inputs()
        if len(ready) != 1 or ready[0][0].remainder or not ready[0][0].step_input:
            return ready, 0.0
        step_input, step = ready[0][0].step_input, self.costs.model.predict(SINGLE_TOKEN)
        began = time.perf_counter()
        with self._wake:
            while not (self._waiting or self._stopping):
                now = time.perf_counter()
                if (left := min(step_input.wait_seconds(now, step), began + step - now)) <= 0:
                    break
                self._wake.wait(left)
        waited = time.perf_counter() - began
        return self._ready_inputs(), waited

    def _step(self) -> None:
        """Run one forward pass over as much of the step inputs as fits, with the draft rows that
        are worth their cost. Then learn the duration of the whole step, including its preparation
        and the processing of results, because rows cost time in all of these parts.
        """
        preparing = time.perf_counter()
        step_inputs, waited = self._step_inputs()
        if not step_inputs:
            return
        self._stepping = tasks = [task for task, _ in step_inputs]
        segments = [segment for _, segment in step_inputs]
        cost = self.costs.model
        decode_seconds = self.costs.decode_seconds.at(time.perf_counter())

        def chances(index: int) -> Iterator[float]:
            task = tasks[index]
            if task.remainder or task.step_input is None:
                return iter(())
            return task.step_input.chances()

        batch = compose(segments, chances, cost, self._limits, decode_seconds)
        self.price = batch.price
        self._stepping = [tasks[allocation.index] for allocation in batch.allocations]
        for task, allocation in zip(self._stepping, batch.allocations, strict=True):
            if allocation.rows and task.step_input:
                allocation.chunk = task.step_input.segment(allocation.rows)
        self.after_step()  # sends items that jobs emitted while the step was composed
        chunks = [allocation.chunk for allocation in batch.allocations]
        began, load = time.perf_counter(), sum(map(load_of, chunks), StepLoad())
        host = began - self._ended if self._ended else None
        self.progress = self.progress.began(began, cost.predict(load), cost.predict(SINGLE_TOKEN))
        logits = self._forward(chunks)
        inputs = [task.step_input for task in self._stepping]
        self.after_forward(list(zip(inputs, logits, strict=False)))
        self._wait()
        self._ended = time.perf_counter()
        self._report(batch, load, self._ended - began, host)
        self._steps, self._failures = self._steps + 1, Failures()
        for task, allocation, rows in zip(self._stepping, batch.allocations, logits, strict=True):
            task.last_step, requested = self._steps, segments[allocation.index]
            complete = bool(allocation.rows) or allocation.chunk is requested
            task.advance(allocation.chunk, rows, complete)
        now = time.perf_counter()
        self.costs.learn(batch, load, now - preparing - waited, now)
        self.costs.core_waits.observe(*thread_seconds())
        self._running = [task for task in self._running if task.step_input]
        self._news = True

    def _report(self, batch: Batch, load: StepLoad, seconds: float, host: float | None) -> None:
        """Report a pass to the observer, before any job continues."""
        (queued, self._queued), error = (self._queued, []), self.costs.model.error
        self._observe(StepReport(len(batch.allocations), load.tokens, seconds, queued, error, host))
