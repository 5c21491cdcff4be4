"""Limit the requests that run and those that wait, in all and for each client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from tandem.orchestrator.frontend.fair_queue import FairQueue, QueueEntry, RetryDelay
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.requests.request import Quota, client_name
from tandem.protos.errors import Busy

DEFAULT_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class Limits:
    """How many requests may run and how many may wait. The names of the settings for these limits
    end with `of`.
    """

    running: int
    waiting: int
    of: str = ""


@dataclass(slots=True)
class AdmittedCount:
    """Counts the requests that run or wait, either all of them or those of one client."""

    limits: Limits
    count: int = 0
    delay: RetryDelay = field(default_factory=RetryDelay)

    def check(self) -> None:
        """Raise Busy if no further request may run or wait."""
        limits = self.limits
        if self.count >= limits.running + limits.waiting:
            whose = " of this client" if limits.of else ""
            bounds = f"max_running{limits.of} is {limits.running}, max_waiting{limits.of}"
            problem = f"{self.count} requests{whose} run or wait: {bounds} is {limits.waiting}"
            raise Busy(problem, self.delay.retry_after())

    def ended(self) -> None:
        """Note that one request has ended."""
        self.count -= 1
        self.delay.ended(time.monotonic())


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """How many requests of one client run, and how many wait. `name` is a part of a digest instead
    of the client's own name, because other clients see the load.
    """

    name: str
    running: int
    waiting: int


@dataclass(slots=True)
class Place:
    """A place that a running request holds."""

    used: int = 0  # tokens of the request's prompt and answer so far


class Admission:
    """Shares a limited number of places fairly between clients. A request with a place runs. Other
    requests wait, and their number is also limited.
    """

    def __init__(self, limits: Limits, limits_each: Limits, metrics: FrontMetrics) -> None:
        self._all = AdmittedCount(limits)
        self._limits_each = limits_each
        self._clients: dict[bytes, AdmittedCount] = {}  # the counts of clients that have requests
        self._queue = FairQueue(limits.running, limits_each.running)
        self._begun: dict[QueueEntry, asyncio.Event] = {}
        metrics.running.set_function(lambda: self.running)
        metrics.waiting.set_function(lambda: self.waiting)

    @property
    def running(self) -> int:
        """The number of requests with a place."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """The number of admitted requests without a place."""
        return self._all.count - self.running

    @property
    def clients(self) -> tuple[ClientLoad, ...]:
        """The loads of all clients that have requests, the busiest client first."""
        loads = []
        for client, admitted in self._clients.items():
            running = self._queue.running_of(client)
            loads.append(ClientLoad(client_name(client), running, admitted.count - running))
        return tuple(sorted(loads, key=lambda each: (-each.running, -each.waiting, each.name)))

    def most_running(self, quota: Quota) -> int:
        """Return how many requests of a client may run at once."""
        return min(self._all.limits.running, self._limits(quota).running)

    @contextmanager
    def admitted(self, client: bytes, quota: Quota = DEFAULT_QUOTA) -> Iterator[None]:
        """Admit a request while the scope lasts. Within the scope, the request may ask for a place.
        Raises Busy if too many requests run or wait.
        """
        of_client = self._clients.get(client) or AdmittedCount(self._limits_each)
        of_client.limits = self._limits(quota)
        counted = of_client, self._all
        for each in counted:
            each.check()
        self._clients[client] = of_client
        for each in counted:
            each.count += 1
        try:
            yield
        finally:
            for each in counted:
                each.ended()
            if not of_client.count:
                del self._clients[client]

    @asynccontextmanager
    async def place(
        self, client: bytes, cost: int, quota: Quota = DEFAULT_QUOTA, subclient: bytes = b""
    ) -> AsyncIterator[Place]:
        """Wait for the turn of a request's client, and then give the admitted request a place while
        the scope lasts. The request uses at most `cost` tokens, and counts them in the place.
        """
        place = Place()
        weighed = max(1, round(cost / quota.weight))
        entry = self._queue.add(client, weighed, subclient, self._limits(quota).running)
        begun = self._begun[entry] = asyncio.Event()
        self._start()
        try:
            await begun.wait()
            yield place
        finally:
            del self._begun[entry]
            self._queue.leave(entry, place.used / quota.weight)
            self._start()

    def _limits(self, quota: Quota) -> Limits:
        each = self._limits_each
        return Limits(
            each.running if quota.running is None else quota.running,
            each.waiting if quota.waiting is None else quota.waiting,
            each.of,
        )

    def _start(self) -> None:
        for entry in self._queue.start():
            self._begun[entry].set()
