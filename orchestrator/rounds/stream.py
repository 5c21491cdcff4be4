"""A generation's stream at one service, which is reopened after every loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tandem.protos.errors import TandemError, TransportLost
from tandem.protos.streams import PassTimes

MAX_DOUBLINGS = 16  # maximum number of doublings of a retry pause, to prevent overflow

Sent = TypeVar("Sent")
SentContra = TypeVar("SentContra", contravariant=True)
Received = TypeVar("Received")
ReceivedCo = TypeVar("ReceivedCo", covariant=True)
ReceivedContra = TypeVar("ReceivedContra", contravariant=True)


class Subscriber(Protocol[ReceivedContra]):
    """The methods that a link calls on the owner of a stream."""

    def connected(self) -> None:
        """Note that the service can be reached."""

    def lost(self) -> None:
        """Note that the service cannot be reached now."""

    def receive(self, item: ReceivedContra) -> None:
        """Process an item that arrived on the stream."""

    def failed(self, error: TandemError) -> None:
        """Note that the stream has ended, or could not be opened."""


class ServiceLink(Protocol[SentContra, ReceivedCo]):
    """A connection to a service, such as `link.Link`. The caller chooses the ID of each stream."""

    @property
    def connected(self) -> bool:
        """Whether the service can be reached."""

    @property
    def problem(self) -> str:
        """The reason why the service must not be used; empty if no reason is known."""

    @property
    def round_trip(self) -> float:
        """The smoothed round trip to the service in seconds; 0 means not known."""

    def group(self, stream: int) -> str:
        """Return the fingerprint of the model that serves a stream; empty if it is not known."""

    def replica(self, stream: int) -> str:
        """Return the name of the replica where a stream is open; empty if no stream is open or the
        replica has no name.
        """

    @property
    def load(self) -> tuple[float, float]:
        """The `price` and the seconds per token that the service reports. `price` is the lowest
        acceptance probability at which a node is worth verifying. A value that is not reported
        is 0.
        """

    def subscribe(self, subscriber: Subscriber[ReceivedCo]) -> None:
        """From now on, tell the subscriber whenever the service is connected or lost."""

    def unsubscribe(self, subscriber: Subscriber[ReceivedCo]) -> None:
        """Stop telling the subscriber when the service is connected or lost."""

    def open(self, stream: int, opening: SentContra, subscriber: Subscriber[ReceivedCo]) -> None:
        """Open a stream. Items that arrive for the stream go to the subscriber."""

    def drop(self, stream: int) -> None:
        """Forget a stream, so that items that still arrive for the stream are ignored."""

    def send(self, stream: int, item: SentContra) -> None:
        """Send an item. Items are dropped while the service is not connected."""

    def close(self, session_id: bytes, turn: int) -> None:
        """Tell the service to forget a session, unless the session was opened with a newer turn. If
        the service is not connected, it is told when it is connected again.
        """


class ReplicaLink(ServiceLink[SentContra, ReceivedCo], Protocol[SentContra, ReceivedCo]):
    """The connection to one process of a service."""

    @property
    def passes(self) -> PassTimes:
        """How long the forward passes of the process take."""

    @property
    def others(self) -> int:
        """The number of streams that other orchestrators have open at the process."""


class TimerHandle(Protocol):
    """A scheduled call, which can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call."""


class Timer(Protocol):
    """The clock and timer of an event loop, or of a simulation."""

    def now(self) -> float:
        """Return the time in seconds."""

    def call_later(self, seconds: float, call: Callable[[], None]) -> TimerHandle:
        """Call `call` after `seconds` seconds plus a random delay, to spread the callers out."""


@dataclass(slots=True, eq=False)
class SessionStream(Generic[Sent, Received]):
    """The stream of one generation at a service. After a failure, `retry` reopens the stream.
    `open` opens a stream if one is needed. `on_item` is called with each item of the stream, and
    `on_failure` with the error that ends the stream.
    """

    link: ServiceLink[Sent, Received]
    timer: Timer
    open: Callable[[], None]
    on_item: Callable[[Received], None]
    on_failure: Callable[[TandemError], None]
    number: int = 0  # ID of the open stream; 0 if none is open
    turn: int = 0  # the turn of the newest opening
    openings: int = 0
    switches: int = 0  # how often the stream was reopened after the service had answered
    _answered: bool = False
    failures: int = 0  # number of failures since the last item arrived
    waited: float = 0.0  # seconds spent in retry pauses since the last item arrived
    _retry: TimerHandle | None = None
    _retry_since: float = 0.0

    @property
    def opened(self) -> bool:
        """Whether a stream is open."""
        return self.number != 0

    def start(self, number: int, turn: int, opening: Sent) -> None:
        """Open a stream, and drop the previous one."""
        self.stop()
        self.number, self.turn = number, turn
        self.openings += 1
        self.switches += self._answered
        self._answered = False
        self.link.open(number, opening, self)

    def send(self, item: Sent) -> None:
        """Send an item on the stream, if the stream is open."""
        if self.opened:
            self.link.send(self.number, item)

    def retry(self, least: float, most: float, retry_after: float = 0.0) -> None:
        """Reopen the stream after a pause, or earlier if the service becomes connected. The pause
        doubles with every failure, and lasts at least `retry_after` seconds.
        """
        self.stop()
        doublings = min(self.failures - 1, MAX_DOUBLINGS)
        pause = max(retry_after, min(most, least * 2.0**doublings))
        self._retry, self._retry_since = self.timer.call_later(pause, self.open), self.timer.now()

    def stop(self) -> None:
        """Drop the stream, and cancel a scheduled retry."""
        if self.opened:
            self.link.drop(self.number)
            self.number = 0
        if self._retry:
            self.waited += self.timer.now() - self._retry_since
            self._retry.cancel()
            self._retry = None

    def close(self, session_id: bytes) -> None:
        """Stop for good, and have the service forget the session."""
        self.stop()
        self.link.unsubscribe(self)
        if self.openings:
            self.link.close(session_id, self.turn)

    def connected(self) -> None:
        """Open a stream, because the link is connected."""
        self.open()

    def lost(self) -> None:
        """Treat the loss of the link as a failure of the stream."""
        self.failed(TransportLost(self.link.problem or "the service cannot be reached"))

    def receive(self, item: Received) -> None:
        """Pass on an item that the link received, and reset the count of failures."""
        self.failures, self.waited, self._answered = 0, 0.0, True
        self.on_item(item)

    def failed(self, error: TandemError) -> None:
        """Drop the stream, which has failed, and report the error through `on_failure`."""
        self.stop()
        self.failures += 1
        self.on_failure(error)
