"""Choose the client whose request runs next, by deficit round robin (Shreedhar and Varghese, 1995).
Clients are charged the number of tokens that their requests use. The module also computes how long
a client should wait before it retries a refused request.

The number of tokens that a request uses is known only when the request has ended. When a request
starts, its client is therefore charged the average number of tokens of the client's earlier
requests. A new client is charged the average number of tokens of all clients' requests. The charge
never exceeds the maximum number of tokens that the request can use. When the request ends, the
charge is corrected to the number of tokens that it actually used.

The module is pure: callers pass the current time. The requests of one client start in the order of
their arrival. If a client has subclients, such as the users of one application, the subclients take
turns.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

NEWEST_WEIGHT = 0.1  # weight of the newest value in a moving average
UNKNOWN_RETRY_SECONDS = 0.5  # retry delay while fewer than two requests have ended
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 10.0
MAX_REMEMBERED_CLIENTS = 1 << 12  # limit on the size of `_usual_tokens`; a client takes 100 bytes


@dataclass(eq=False, slots=True)
class QueueEntry:
    """A waiting or running request. `cost` is the maximum number of tokens that the request can
    use. `charged` is the number of tokens that its client was charged when the request started.
    """

    client: bytes
    cost: int
    subclient: bytes = b""
    running: bool = False
    charged: float = 0.0


@dataclass(slots=True)
class ClientQueue:
    """The requests of one client. At most `places` requests of the client may run at once. Waiting
    requests are grouped by subclient, and the subclients take turns. `credit` is the number of
    tokens that the client can still spend to start requests.
    """

    places: int
    waiting: dict[bytes, deque[QueueEntry]] = field(default_factory=dict)
    running: int = 0
    credit: float = 0.0

    @property
    def next(self) -> QueueEntry:
        """The request that the client starts next."""
        return next(iter(self.waiting.values()))[0]

    def take(self) -> QueueEntry:
        """Remove and return the request that the client starts next. The next turn goes to another
        subclient.
        """
        subclient = next(iter(self.waiting))
        entries = self.waiting.pop(subclient)
        entry = entries.popleft()
        if entries:
            self.waiting[subclient] = entries
        return entry

    def drop(self, entry: QueueEntry) -> None:
        """Remove a waiting request from the queue."""
        self.waiting[entry.subclient].remove(entry)
        if not self.waiting[entry.subclient]:
            del self.waiting[entry.subclient]


class FairQueue:
    """The queue of the requests of all clients. The number of running requests is limited in total
    and per client.
    """

    def __init__(self, places: int, places_per_client: int) -> None:
        self.running = 0
        self._places = places
        self._places_per_client = places_per_client
        # clients in the order in which they last started a request, the most recent last
        self._queues: dict[bytes, ClientQueue] = {}
        self._average_tokens = inf  # moving average of the tokens per request, over all clients
        # moving average of the tokens per request of each client, including clients that have left
        self._usual_tokens: dict[bytes, float] = {}

    def running_of(self, client: bytes) -> int:
        """Return the number of running requests of a client."""
        return self._queues[client].running if client in self._queues else 0

    def add(
        self, client: bytes, cost: int, subclient: bytes = b"", places: int | None = None
    ) -> QueueEntry:
        """Add a waiting request. At most `places` requests of its client may run at once. If
        `places` is None, the default limit per client applies.
        """
        entry = QueueEntry(client, cost, subclient)
        places = self._places_per_client if places is None else places
        known = self._queues.setdefault(client, ClientQueue(places))
        known.places = places
        known.waiting.setdefault(subclient, deque()).append(entry)
        return entry

    def start(self) -> list[QueueEntry]:
        """Start waiting requests, in fair order, until no more may run. Returns the started
        requests.
        """
        started = []
        while self.running < self._places and (ready := self._ready()):
            started.append(self._start(ready))
        return started

    def leave(self, entry: QueueEntry, used: float | None = None) -> None:
        """Remove a request that has ended or stops waiting. `used` is the number of tokens that the
        request has used. If `used` is None, the request is charged its maximum, `cost`.
        """
        queue = self._queues[entry.client]
        if entry.running:
            self.running -= 1
            queue.running -= 1
            used = entry.cost if used is None else used
            queue.credit += entry.charged - used
            usual = self._usual_tokens.pop(entry.client, used)
            self._usual_tokens[entry.client] = usual + NEWEST_WEIGHT * (used - usual)
            if len(self._usual_tokens) > MAX_REMEMBERED_CLIENTS:
                del self._usual_tokens[next(iter(self._usual_tokens))]
            known = used if self._average_tokens == inf else self._average_tokens
            self._average_tokens = known + NEWEST_WEIGHT * (used - known)
        else:
            queue.drop(entry)
        if not queue.waiting:
            queue.credit = 0
        if not (queue.waiting or queue.running):
            del self._queues[entry.client]

    def _charge(self, entry: QueueEntry) -> float:
        """Return how many tokens the client is charged when a request starts."""
        return min(entry.cost, self._usual_tokens.get(entry.client, self._average_tokens))

    def _missing_credit(self, queue: ClientQueue) -> float:
        """Return how many more tokens of credit a client needs to start its next request."""
        return max(0.0, self._charge(queue.next) - queue.credit)

    def _ready(self) -> list[ClientQueue]:
        queues = self._queues.values()
        return [queue for queue in queues if queue.waiting and queue.running < queue.places]

    def _start(self, ready: list[ClientQueue]) -> QueueEntry:
        """Start the next request of the client that needs the least additional credit. All ready
        clients receive as much credit as the started client lacked, so the clients that still wait
        need less additional credit the next time. This has the same effect as a round of deficit
        round robin that starts exactly one request.
        """
        first = min(ready, key=self._missing_credit)
        missing = self._missing_credit(first)
        for queue in ready:
            queue.credit += missing
        entry = first.take()
        entry.charged = self._charge(entry)
        first.credit = first.credit - entry.charged if first.waiting else 0
        first.running += 1
        self.running += 1
        entry.running = True
        self._queues[entry.client] = self._queues.pop(entry.client)
        return entry


@dataclass(slots=True)
class RetryDelay:
    """Computes how long a client should wait before it retries a refused request, from the rate at
    which requests end. `interval` is the moving average of the seconds between the ends of two
    requests. `refused` is the number of refused requests that are expected to be sent again.
    """

    interval: float | None = None
    refused: int = 0
    last: float | None = None

    def ended(self, now: float) -> None:
        """Record the end of a request. One refused request can now be retried successfully, so
        `refused` is reduced by one.
        """
        if self.last is not None:
            pause = min(now - self.last, MAX_RETRY_SECONDS)
            usual = pause if self.interval is None else self.interval
            self.interval = usual + NEWEST_WEIGHT * (pause - usual)
        self.last = now
        self.refused = max(0, self.refused - 1)

    def retry_after(self) -> float:
        """Count one more refused request, and return the seconds to wait before it is retried. The
        delay grows with the number of refused requests, so that they are not all retried at the
        same time.
        """
        if self.interval is None:
            return UNKNOWN_RETRY_SECONDS
        delay = (self.refused + 1) * self.interval
        if delay < MAX_RETRY_SECONDS:
            self.refused += 1
        return min(max(MIN_RETRY_SECONDS, delay), MAX_RETRY_SECONDS)
