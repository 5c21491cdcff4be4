"""Simulated time, and links that break: what a crossing's services are reached over."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from protos.tandem.v1 import common_pb2
from protos.transport import status

PATIENT_SECONDS = 300.0


@dataclass(slots=True)
class Alarm:
    """A call that is to come."""

    call: Callable[[], None] | None

    def cancel(self) -> None:
        self.call = None


class Clock:
    """A timer whose time passes as soon as nothing is left to do."""

    def __init__(self) -> None:
        self.time = 0.0
        self._queue: list[tuple[float, int, Alarm]] = []
        self._count = count()

    def now(self) -> float:
        return self.time

    def later(self, seconds: float, call: Callable[[], None]) -> Alarm:
        alarm = Alarm(call)
        heappush(self._queue, (self.time + seconds, next(self._count), alarm))
        return alarm

    def pass_until(self, done: Callable[[], bool], seconds: float = PATIENT_SECONDS) -> bool:
        """Let time pass; whether it is done in time."""
        while not done() and self._queue and self.time < seconds:
            self.time, _, alarm = heappop(self._queue)
            if alarm.call:
                alarm.call()
        return done()


class Server:
    """What is at the other end."""

    def __init__(self, clock: Clock, rng: random.Random, evil: float) -> None:
        self.clock, self.rng = clock, rng
        self.evil = evil  # how often a fault happens where one may
        self.up = True
        self.links: list[Link] = []

    def receive(self, call: Call, name: str, item: Any) -> None:
        """An item arrives."""

    def gone(self, call: Call) -> None:
        """A call has ended."""


class Call:
    """A link's connection: both ways keep their order, and each end may learn late that it is
    gone.
    """

    def __init__(self, link: Link | None, server: Server) -> None:
        self.link, self.server, self.open = link, server, True
        self.there = self.back = 0.0

    def ask(self, name: str, item: Any) -> None:
        clock, rng = self.server.clock, self.server.rng
        self.there = max(self.there + 1e-6, clock.time + rng.expovariate(20))
        clock.later(
            self.there - clock.time, lambda: self.open and self.server.receive(self, name, item)
        )

    def answer(self, item: Any) -> None:
        clock, rng = self.server.clock, self.server.rng
        self.back = max(self.back + 1e-6, clock.time + rng.expovariate(20))
        clock.later(self.back - clock.time, lambda: self.link and self.link.take(self, item))

    def leave(self, seconds: float) -> None:
        """The client is gone; the server learns it then."""
        self.link = None
        self.server.clock.later(seconds, self.hang_up)

    def hang_up(self) -> None:
        self.open = False
        self.server.gone(self)


class Link:
    """What a worker has of a service."""

    def __init__(self, server: Server) -> None:
        self.server, self.connected = server, False
        self.users: dict[Any, None] = {}
        self.streams: dict[int, Any] = {}
        self.call: Call | None = None
        self.closing: list[bytes] = []
        server.links.append(self)
        self._connect()

    def join(self, user: Any) -> None:
        self.users[user] = None

    def leave(self, user: Any) -> None:
        self.users.pop(user, None)

    def open(self, opening: Any, user: Any) -> None:
        self.streams[opening.stream] = user
        self.send("open", opening)
        server = self.server
        if self.call and server.rng.random() < server.evil:  # the network repeats it, late
            ghost, delay = Call(None, server), self.call.there - server.clock.time
            delay += 5 * server.rng.random()
            server.clock.later(delay, lambda: server.receive(ghost, "open", opening))
            server.clock.later(delay + 4, ghost.hang_up)

    def drop(self, stream: int) -> None:
        self.streams.pop(stream, None)

    def send(self, name: str, item: Any) -> None:
        if self.call:
            copy = (
                item if isinstance(item, bytes) else type(item).FromString(item.SerializeToString())
            )
            self.call.ask(name, copy)

    def close(self, session_id: bytes) -> None:
        self.closing.append(session_id)
        self.send("close", session_id)

    def take(self, call: Call, item: Any) -> None:
        user = self.streams.get(item.stream) if call is self.call else None
        if user and isinstance(item, common_pb2.Failure):
            del self.streams[item.stream]
            user.failed(status.unpack(item.status))
        elif user:
            user.receive(item)

    def lose(self) -> None:
        """The connection breaks: both ends learn it some time."""
        server = self.server
        if self.call:
            self.call.leave(server.rng.expovariate(0.3))
            self.call, self.connected = None, False
            self.streams.clear()
            for user in list(self.users):
                user.lost()
            server.clock.later(server.rng.expovariate(1), self._connect)

    def _connect(self) -> None:
        if self.call:
            return
        if not self.server.up:
            self.server.clock.later(0.5, self._connect)
            return
        self.call, self.connected = Call(self, self.server), True
        for session_id in self.closing:
            self.send("close", session_id)
        for user in list(self.users):
            user.connected()
