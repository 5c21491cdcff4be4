"""Limit how many requests run and how many wait, in total and per client."""

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
    """How many requests may run and how many may wait. `of` is the suffix in the names of the
    settings that define the limits, such as `_per_client`.
    """

    running: int
    waiting: int
    of: str = ""


@dataclass(slots=True)
class AdmittedCount:
    """Counts running and waiting requests, either of all clients or of one client."""

    limits: Limits
    count: int = 0
    delay: RetryDelay = field(default_factory=RetryDelay)

    def check(self) -> None:
        """Raise Busy if the limits do not allow another request."""
        limits = self.limits
        if self.count >= limits.running + limits.waiting:
            whose = " of this client" if limits.of else ""
            bounds = f"max_running{limits.of} is {limits.running}, max_waiting{limits.of}"
            problem = f"{self.count} requests{whose} run or wait: {bounds} is {limits.waiting}"
            raise Busy(problem, self.delay.retry_after())

    def ended(self) -> None:
        """Record the end of one request."""
        self.count -= 1
        self.delay.ended(time.monotonic())


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """The numbers of running and waiting requests of one client. `name` is the beginning of a
    digest of the client's name. The name itself is not shown, because other clients can read these
    numbers.
    """

    name: str
    running: int
    waiting: int


@dataclass(slots=True)
class Place:
    """The request slot of a running request."""

    used: int = 0  # tokens of the request's prompt and answer so far


class Admission:
    """Shares a limited number of request slots fairly between clients. A request runs while it
    holds a slot. Other requests wait, and the number of waiting requests is also limited.
    """

    def __init__(self, limits: Limits, limits_each: Limits, metrics: FrontMetrics) -> None:
        self._all = AdmittedCount(limits)
        self._limits_each = limits_each
        self._clients: dict[bytes, AdmittedCount] = {}  # only clients that have requests
        self._queue = FairQueue(limits.running, limits_each.running)
        self._begun: dict[QueueEntry, asyncio.Event] = {}
        metrics.running.set_function(lambda: self.running)
        metrics.waiting.set_function(lambda: self.waiting)

    @property
    def running(self) -> int:
        """The number of requests that hold a request slot."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """The number of admitted requests that wait for a request slot."""
        return self._all.count - self.running

    @property
    def clients(self) -> tuple[ClientLoad, ...]:
        """The loads of all clients that have requests, sorted from busiest to least busy."""
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
        """Count a request as admitted until this context ends. Inside the context, the request may
        wait for a request slot and then run. Raises Busy if too many requests run or wait.
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
        """Wait for the client's turn, then hold a request slot for an admitted request until this
        context ends. `cost` is the maximum number of tokens that the request can use. The caller
        updates the number of used tokens in the yielded slot.
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
