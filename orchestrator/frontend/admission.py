"""Limit the requests that run and those that wait, in all and for each client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from tandem.orchestrator.frontend.fair_queue import FairQueue, RetryDelay, Turn
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.requests.request import Quota, client_name
from tandem.protos.errors import Busy

DEFAULT_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class Limits:
    """How many requests may run and how many may wait. `of` ends the names of these settings."""

    running: int
    waiting: int
    of: str = ""


@dataclass(slots=True)
class Tickets:
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
    """The requests of one client that run and that wait. `name` is not the client's own name, since
    other clients see the load.
    """

    name: str
    running: int
    waiting: int


@dataclass(slots=True)
class Place:
    """The place of a request that runs."""

    used: int = 0  # tokens of the request's prompt and answer so far


class Admission:
    """Places for requests that run at once, which clients share fairly. Further requests wait, up
    to a limit.
    """

    def __init__(self, limits: Limits, limits_each: Limits, metrics: FrontMetrics) -> None:
        self._all, self._limits_each = Tickets(limits), limits_each
        self._clients: dict[bytes, Tickets] = {}
        self._queue = FairQueue(limits.running, limits_each.running)
        self._begun: dict[Turn, asyncio.Event] = {}
        metrics.running.set_function(lambda: self.running)
        metrics.waiting.set_function(lambda: self.waiting)

    @property
    def running(self) -> int:
        """The number of requests with a place."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """The number of requests with a ticket but without a place."""
        return self._all.count - self.running

    @property
    def clients(self) -> tuple[ClientLoad, ...]:
        """The loads of all clients that have requests, the busiest client first."""
        loads = []
        for share, tickets in self._clients.items():
            running = self._queue.running_of(share)
            loads.append(ClientLoad(client_name(share), running, tickets.count - running))
        return tuple(sorted(loads, key=lambda each: (-each.running, -each.waiting, each.name)))

    def most_running(self, quota: Quota) -> int:
        """Return how many requests of a client may run at once."""
        return min(self._all.limits.running, self._limits(quota).running)

    @contextmanager
    def ticket(self, share: bytes, quota: Quota = DEFAULT_QUOTA) -> Iterator[None]:
        """Hold a ticket, with which a request may ask for a place. Raises Busy if too many requests
        run or wait.
        """
        client = self._clients.get(share) or Tickets(self._limits_each)
        client.limits = self._limits(quota)
        counted = client, self._all
        for each in counted:
            each.check()
        self._clients[share] = client
        for each in counted:
            each.count += 1
        try:
            yield
        finally:
            for each in counted:
                each.ended()
            if not client.count:
                del self._clients[share]

    @asynccontextmanager
    async def place(
        self, share: bytes, cost: int, quota: Quota = DEFAULT_QUOTA, part: bytes = b""
    ) -> AsyncIterator[Place]:
        """Hold a place, in which a request with a ticket runs. It waits until the client's turn has
        come. The request notes in the place how many tokens it has used, at most `cost`.
        """
        place = Place()
        weighed = max(1, round(cost / quota.weight))
        turn = self._queue.add(share, weighed, part, self._limits(quota).running)
        begun = self._begun[turn] = asyncio.Event()
        self._start()
        try:
            await begun.wait()
            yield place
        finally:
            del self._begun[turn]
            self._queue.leave(turn, place.used / quota.weight)
            self._start()

    def _limits(self, quota: Quota) -> Limits:
        each = self._limits_each
        return Limits(
            each.running if quota.running is None else quota.running,
            each.waiting if quota.waiting is None else quota.waiting,
            each.of,
        )

    def _start(self) -> None:
        for turn in self._queue.start():
            self._begun[turn].set()
