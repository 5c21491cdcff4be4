"""Jobs that wait for the model thread: any thread queues them, and awaits what comes of them."""

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
    """Takes as many as `limit` jobs that wait."""

    def __init__(self, limit: int) -> None:
        self._queue_limit = limit
        self._waiting: deque[Task] = deque()
        self._wake = threading.Condition()
        self._news = False  # something may have changed for a job that waits
        self._stopping = False

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
        """The same, and await the answer; raises what the job raises. Cancelling cancels it."""
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
        """The caller no longer waits for a job: it is dropped, or ended between two steps."""
        with self._wake:
            task.cancelled = self._news = True
            if task in self._waiting:
                self._waiting.remove(task)
                task.answer.cancel()
            self._wake.notify()

    def wake(self) -> None:
        """There may be something new for a job that waits."""
        with self._wake:
            self._news = True
            self._wake.notify()
