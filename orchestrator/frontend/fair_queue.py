"""Choose whose request runs next: deficit round robin between clients (Shreedhar and Varghese,
1995), where a request costs the tokens that it used. Also choose when to retry a refused request.

The tokens that a request used are known only when it has ended. When a request starts, it is
charged the tokens that requests of its client usually use, or those of all requests if the client
is new, but at most its own limit. When it ends, it is charged the difference.

The module is pure: time is an argument. Each client has a share, whose requests start in the order
in which they came.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

NEWEST_WEIGHT = 0.1  # weight of the newest value in a moving average
UNKNOWN_RETRY_SECONDS = 0.5  # retry delay until two requests have ended
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 10.0
MAX_REMEMBERED_CLIENTS = 1 << 12  # clients whose usual tokens are remembered, in 100 bytes each


@dataclass(eq=False, slots=True)
class Turn:
    """A request that waits for a place or has one. `cost` is the tokens that it may use at most."""

    share: bytes
    cost: int
    part: bytes = b""
    running: bool = False
    charged: float = 0.0


@dataclass(slots=True)
class Share:
    """The requests of one client, of which `places` may run at once. They are grouped by parts,
    which take turns. `credit` is the tokens that the client may still start requests for.
    """

    places: int
    waiting: dict[bytes, deque[Turn]] = field(default_factory=dict)
    running: int = 0
    credit: float = 0.0

    @property
    def next(self) -> Turn:
        """The next request of the share."""
        return next(iter(self.waiting.values()))[0]

    def take(self) -> Turn:
        """Remove and return the next request of the share. Then it is another part's turn."""
        part = next(iter(self.waiting))
        turns = self.waiting.pop(part)
        turn = turns.popleft()
        if turns:
            self.waiting[part] = turns
        return turn

    def drop(self, turn: Turn) -> None:
        """Remove a waiting request."""
        self.waiting[turn.part].remove(turn)
        if not self.waiting[turn.part]:
            del self.waiting[turn.part]


class FairQueue:
    """The queue of all clients' requests, with a number of places in all and for each share."""

    def __init__(self, places: int, places_each: int) -> None:
        self.running = 0
        self._places, self._places_each = places, places_each
        self._shares: dict[bytes, Share] = {}  # the share that started a request last is the last
        self._average = inf  # smoothed tokens of a request of any share
        self._usual: dict[bytes, float] = {}  # smoothed tokens by share, even if it has ended

    def running_of(self, share: bytes) -> int:
        """Return how many requests of a share run."""
        return self._shares[share].running if share in self._shares else 0

    def add(self, share: bytes, cost: int, part: bytes = b"", places: int | None = None) -> Turn:
        """Let a request wait. `places` requests of its share may run at once, by default the number
        for each share.
        """
        turn = Turn(share, cost, part)
        places = self._places_each if places is None else places
        known = self._shares.setdefault(share, Share(places))
        known.places = places
        known.waiting.setdefault(part, deque()).append(turn)
        return turn

    def start(self) -> list[Turn]:
        """Give free places to the requests whose turn has come, and return these requests."""
        started = []
        while self.running < self._places and (ready := self._ready()):
            started.append(self._start(ready))
        return started

    def leave(self, turn: Turn, used: float | None = None) -> None:
        """Remove a request, which has ended or gives up waiting. `used` is the tokens that it has
        used, by default its cost.
        """
        share = self._shares[turn.share]
        if turn.running:
            self.running -= 1
            share.running -= 1
            used = turn.cost if used is None else used
            share.credit += turn.charged - used
            usual = self._usual.pop(turn.share, used)
            self._usual[turn.share] = usual + NEWEST_WEIGHT * (used - usual)
            if len(self._usual) > MAX_REMEMBERED_CLIENTS:
                del self._usual[next(iter(self._usual))]
            known = used if self._average == inf else self._average
            self._average = known + NEWEST_WEIGHT * (used - known)
        else:
            share.drop(turn)
        if not share.waiting:
            share.credit = 0
        if not (share.waiting or share.running):
            del self._shares[turn.share]

    def _charge(self, turn: Turn) -> float:
        """Return the tokens that a request is charged when it starts."""
        return min(turn.cost, self._usual.get(turn.share, self._average))

    def _lacking(self, share: Share) -> float:
        """Return the tokens of credit that a share lacks to start its next request."""
        return max(0.0, self._charge(share.next) - share.credit)

    def _ready(self) -> list[Share]:
        shares = self._shares.values()
        return [share for share in shares if share.waiting and share.running < share.places]

    def _start(self, ready: list[Share]) -> Turn:
        """Start the next request of the share that lacks the least credit. All ready shares get
        that much credit, so that shares that waited get ahead of those that started. A round that
        gives this credit has exactly one start.
        """
        first = min(ready, key=self._lacking)
        lacking = self._lacking(first)
        for share in ready:
            share.credit += lacking
        turn = first.take()
        turn.charged = self._charge(turn)
        first.credit = first.credit - turn.charged if first.waiting else 0
        first.running += 1
        self.running += 1
        turn.running = True
        self._shares[turn.share] = self._shares.pop(turn.share)
        return turn


@dataclass(slots=True)
class RetryDelay:
    """How long a refused request should wait, by the service rate. `interval` is the usual seconds
    between the ends of two requests. `refused` requests are expected to be sent again.
    """

    interval: float | None = None
    refused: int = 0
    last: float | None = None

    def ended(self, now: float) -> None:
        """Note that a request ended, so that another one may come."""
        if self.last is not None:
            pause = min(now - self.last, MAX_RETRY_SECONDS)
            usual = pause if self.interval is None else self.interval
            self.interval = usual + NEWEST_WEIGHT * (pause - usual)
        self.last = now
        self.refused = max(0, self.refused - 1)

    def retry_after(self) -> float:
        """Return the seconds that one more refused request should wait: until as many requests have
        ended as were refused before it, so that they do not all come back together.
        """
        if self.interval is None:
            return UNKNOWN_RETRY_SECONDS
        delay = (self.refused + 1) * self.interval
        if delay < MAX_RETRY_SECONDS:
            self.refused += 1
        return min(max(MIN_RETRY_SECONDS, delay), MAX_RETRY_SECONDS)
