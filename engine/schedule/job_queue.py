"""The queue of jobs that wait for the model thread. Any thread may queue a job and await the job's
answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tandem.engine.schedule.task import Job, Task
from tandem.protos.errors import Busy, Unavailable


class JobQueue:
    """A queue that refuses jobs once `limit` jobs wait, except jobs that close a session."""

    def __init__(self, limit: int) -> None:
        self._queue_limit = limit
        self._waiting: deque[Task] = deque()
        self._wake = threading.Condition()
        self._news = False  # whether a job may have something new to do
        self._stopping = False

    def submit(self, owner: bytes, start: Callable[[], Job | None], closing: bool = False) -> Task:
        """Queue a job of the session `owner`; the model thread calls `start`. A job that is
        `closing` the session is accepted even if the queue is full. Raises Busy if the queue is
        full, and Unavailable if the service is stopping.
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
        """Queue a job as `submit` does, and await its answer; raises what the job raises. If the
        caller is cancelled, the job is cancelled too, unless it is `closing` the session.
        """
        task = self.submit(owner, start, closing)
        answer = asyncio.wrap_future(task.answer)
        if closing:
            return await asyncio.shield(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancel(task)
            raise

    def cancel(self, task: Task) -> None:
        """Cancel a job whose caller no longer waits for the answer: drop the job if it waits, or
        end it between two steps if it runs.
        """
        with self._wake:
            task.cancelled = self._news = True
            if task in self._waiting:
                self._waiting.remove(task)
                task.answer.cancel()
            self._wake.notify()

    def wake(self) -> None:
        """Wake the model thread, because a job may have something new to do."""
        with self._wake:
            self._news = True
            self._wake.notify()
