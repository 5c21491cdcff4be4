"""Bounds on the requests that run and those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from tandem.orchestrator.metrics import FrontMetrics
from tandem.protos.errors import Busy


class Admission:
    """Places for so many requests at once; others wait in order, at most `max_waiting` of them."""

    def __init__(self, max_running: int, max_waiting: int, metrics: FrontMetrics) -> None:
        self._places = asyncio.Semaphore(max_running)
        self._max_tickets = max_running + max_waiting
        self._tickets = self.running = 0
        metrics.running.set_function(lambda: self.running)
        metrics.waiting.set_function(lambda: self.waiting)

    @property
    def waiting(self) -> int:
        """Requests with a ticket and without a place."""
        return self._tickets - self.running

    @contextmanager
    def ticket(self) -> Iterator[None]:
        """A scope in which a request may ask for a place; raises Busy when too many wait."""
        if self._tickets >= self._max_tickets:
            raise Busy(f"{self.waiting} requests are waiting", retry_after=0.5)
        self._tickets += 1
        try:
            yield
        finally:
            self._tickets -= 1

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A scope in which a request with a ticket runs."""
        async with self._places:
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1
