"""Simulated time, and links that break, between a relay and its services."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from tandem.protos.errors import TandemError
from tandem.protos.streams import PassTimes

PATIENT_SECONDS = 300.0
FAST, SLOW = PassTimes(0.01, 0.01), PassTimes(2.0, 2.0)


@dataclass(frozen=True, slots=True)
class OnStream:
    """A message on a stream in either direction: a value or, at the end, perhaps an error."""

    stream: int
    value: Any


@dataclass(frozen=True, slots=True)
class Closing:
    """A session to forget, and the turn of the sender's newest opening."""

    session_id: bytes
    turn: int


@dataclass(slots=True)
class TimerHandle:
    """A scheduled call."""

    call: Callable[[], None] | None

    def cancel(self) -> None:
        self.call = None


class Clock:
    """A timer whose time passes as soon as nothing is left to do."""

    def __init__(self) -> None:
        self.time = 0.0
        self._queue: list[tuple[float, int, TimerHandle]] = []
        self._count = count()

    def now(self) -> float:
        return self.time

    def call_later(self, seconds: float, call: Callable[[], None]) -> TimerHandle:
        handle = TimerHandle(call)
        heappush(self._queue, (self.time + seconds, next(self._count), handle))
        return handle

    def pass_until(self, done: Callable[[], bool], seconds: float = PATIENT_SECONDS) -> bool:
        """Let time pass; return whether `done` comes true in time."""
        while not done() and self._queue and self.time < seconds:
            self.time, _, handle = heappop(self._queue)
            if handle.call:
                handle.call()
        return done()


class Server:
    """The service at the other end of a link."""

    def __init__(self, clock: Clock, rng: random.Random, evil: float) -> None:
        self.clock, self.rng = clock, rng
        self.evil = evil  # how often a fault happens where it can
        self.up, self.model, self.group = True, 0, ""
        self.fences: frozenset[str] = frozenset()
        self.passes = FAST
        self.links: list[Link] = []

    def receive(self, call: Call, item: OnStream | Closing) -> None:
        """Handle an item that arrives, or forget a session."""

    def gone(self, call: Call) -> None:
        """End a call."""

    def recover(self) -> None:
        """Make the service as fast as ever."""
        self.passes = FAST


class Call:
    """A link's connection: both directions keep their order, and each end may learn late that the
    other is gone.
    """

    def __init__(self, link: Link | None, server: Server) -> None:
        self.link, self.server, self.open = link, server, True
        self.there = self.back = 0.0

    def ask(self, item: OnStream | Closing) -> None:
        clock, rng = self.server.clock, self.server.rng
        self.there = max(self.there + 1e-6, clock.time + rng.expovariate(20))
        clock.call_later(
            self.there - clock.time, lambda: self.open and self.server.receive(self, item)
        )

    def answer(self, item: OnStream) -> None:
        clock, rng = self.server.clock, self.server.rng
        self.back = max(self.back + 1e-6, clock.time + rng.expovariate(20))
        clock.call_later(self.back - clock.time, lambda: self.link and self.link.take(self, item))

    def leave(self, seconds: float) -> None:
        """Remove the client; the server learns this now."""
        self.link = None
        self.server.clock.call_later(seconds, self.hang_up)

    def hang_up(self) -> None:
        self.open = False
        self.server.gone(self)


class Link:
    """A cell's link to a service."""

    def __init__(self, server: Server) -> None:
        self.server, self.connected, self.round_trip = server, False, 0.0
        self.problem = ""
        self.group = lambda stream: self.server.group
        self.name = ""
        self.replica = lambda stream: self.name
        self.load = (0.0, 0.0)
        self.subscribers: dict[Any, None] = {}
        self.streams: dict[int, Any] = {}
        self.call: Call | None = None
        self.closing: list[Closing] = []
        self.failures: list[TandemError] = []  # errors of the streams in use
        server.links.append(self)
        self._connect()

    others = 0

    @property
    def passes(self) -> PassTimes:
        return self.server.passes

    def subscribe(self, subscriber: Any) -> None:
        self.subscribers[subscriber] = None

    def unsubscribe(self, subscriber: Any) -> None:
        self.subscribers.pop(subscriber, None)

    def open(self, stream: int, opening: Any, subscriber: Any) -> None:
        self.streams[stream] = subscriber
        self.send(stream, opening)
        server = self.server
        if self.call and server.rng.random() < server.evil:  # the network repeats the message, late
            ghost, delay = Call(None, server), self.call.there - server.clock.time
            delay += 5 * server.rng.random()
            late = OnStream(stream, opening)
            server.clock.call_later(delay, lambda: server.receive(ghost, late))
            server.clock.call_later(delay + 4, ghost.hang_up)

    def drop(self, stream: int) -> None:
        self.streams.pop(stream, None)

    def send(self, stream: int, item: Any) -> None:
        if self.call:
            self.call.ask(OnStream(stream, item))

    def close(self, session_id: bytes, turn: int) -> None:
        self.closing.append(Closing(session_id, turn))
        if self.call:
            self.call.ask(self.closing[-1])

    def take(self, call: Call, item: OnStream) -> None:
        subscriber = self.streams.get(item.stream) if call is self.call else None
        if subscriber and isinstance(item.value, TandemError):
            del self.streams[item.stream]
            self.failures.append(item.value)
            subscriber.failed(item.value)
        elif subscriber:
            subscriber.receive(item.value)

    def lose(self) -> None:
        """Break the connection; both ends learn this later."""
        server = self.server
        if self.call:
            self.call.leave(server.rng.expovariate(0.3))
            self.call, self.connected = None, False
            self.streams.clear()
            for subscriber in list(self.subscribers):
                subscriber.lost()
            server.clock.call_later(server.rng.expovariate(1), self._connect)

    def _connect(self) -> None:
        if self.call:
            return
        if not self.server.up or (self.server.model and "fingerprint" in self.server.fences):
            self.server.clock.call_later(0.5, self._connect)
            return
        self.call, self.connected = Call(self, self.server), True
        for closing in self.closing:
            self.call.ask(closing)
        for subscriber in list(self.subscribers):
            subscriber.connected()
