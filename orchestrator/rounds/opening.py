"""One side of a crossing: a generation's stream at one service, opened whenever it can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from protos.errors import TandemError, TransportLost


class Line(Protocol):
    """What carries streams to a service; `link.Link` is one."""

    connected: bool

    def join(self, user: Side) -> None:
        """Tell a side from now on when the service comes and goes."""

    def leave(self, user: Side) -> None:
        """Tell it no more."""

    def open(self, opening: Any, user: Side) -> None:
        """Open a stream, of the opening's number; what arrives for it is the side's."""

    def drop(self, stream: int) -> None:
        """Ignore what still arrives for a stream."""

    def send(self, field: str, item: Any) -> None:
        """Send an item; in vain while nobody is connected."""

    def close(self, session_id: bytes) -> None:
        """Have a session forgotten."""


class Alarm(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """It is not."""


class Timer(Protocol):
    """Time, which tests may be masters of."""

    def now(self) -> float:
        """Seconds."""

    def later(self, seconds: float, call: Callable[[], None]) -> Alarm:
        """Call after so many seconds, or a few more: not all callers at once."""


@dataclass(slots=True, eq=False)
class Side:
    """`open` opens a stream if there is reason to; `received` and `ended` take what comes of it."""

    line: Line
    timer: Timer
    open: Callable[[], None]
    received: Callable[[Any], None]
    ended: Callable[[TandemError], None]
    stream: int = 0  # 0 = none is open
    openings: int = 0
    failures: int = 0  # since something came
    waited: float = 0.0  # seconds since then, with nothing open
    _retry: Alarm | None = None

    def begin(self, opening: Any) -> None:
        """Open a stream in place of the one before."""
        self.stop()
        self.stream = opening.stream
        self.openings += 1
        self.line.open(opening, self)

    def send(self, name: str, item: Any) -> None:
        """Send an item of the stream, if one is open."""
        if self.stream:
            item.stream = self.stream
            self.line.send(name, item)

    def again(self, least: float, most: float, asked: float = 0.0) -> None:
        """Open a stream after a pause that grows with every failure, and that is at least as long
        as was `asked`; or at once when the service comes back.
        """
        self.stop()
        pause = max(asked, min(most, least * 2.0 ** (self.failures - 1)))
        self.waited += pause
        self._retry = self.timer.later(pause, self.open)

    def stop(self) -> None:
        """Have no stream."""
        if self.stream:
            self.line.drop(self.stream)
            self.stream = 0
        if self._retry:
            self._retry.cancel()
            self._retry = None

    def leave(self, session_id: bytes) -> None:
        """For good."""
        self.stop()
        self.line.leave(self)
        if self.openings:
            self.line.close(session_id)

    def connected(self) -> None:
        """The service can be had."""
        self.open()

    def lost(self) -> None:
        """It cannot."""
        self.failed(TransportLost("the service cannot be reached"))

    def receive(self, item: Any) -> None:
        """Something arrived."""
        self.failures, self.waited = 0, 0.0
        self.received(item)

    def failed(self, error: TandemError) -> None:
        """The stream has ended, or there was none."""
        self.stop()
        self.failures += 1
        self.ended(error)
