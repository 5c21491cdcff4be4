"""Whose request runs next: deficit round robin between clients, with the tokens that a request used
as its cost (Shreedhar and Varghese, 1995); and when one that was refused may be sent again.

These tokens are known when it has ended. When it starts it is charged what requests of its client
usually use, those of all where there was none yet, but no more than it may use; and when it ends
the difference.

Pure: time is an argument. A share is that of one client; its requests start in the order in which
they came.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

WEIGHT = 0.1  # of the newest request in what is usual
UNKNOWN_RETRY_SECONDS = 0.5  # before two requests have ended
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 10.0
REMEMBERED = 1 << 12  # clients whose usual request is known, 100 bytes each


@dataclass(eq=False, slots=True)
class Turn:
    """A request that waits for a place, or has one; `cost`: tokens that it may use at most."""

    share: bytes
    cost: int
    part: bytes = b""
    running: bool = False
    charged: float = 0.0


@dataclass(slots=True)
class Share:
    """The requests of one client, of which `places` may run, by the parts that take turns; `credit`
    is the tokens that it may start and has not.
    """

    places: int
    waiting: dict[bytes, deque[Turn]] = field(default_factory=dict)
    running: int = 0
    credit: float = 0.0

    @property
    def next(self) -> Turn:
        """Its next request."""
        return next(iter(self.waiting.values()))[0]

    def take(self) -> Turn:
        """Its next request, which waits no longer; then it is another part's turn."""
        part = next(iter(self.waiting))
        turns = self.waiting.pop(part)
        turn = turns.popleft()
        if turns:
            self.waiting[part] = turns
        return turn

    def drop(self, turn: Turn) -> None:
        """A request waits no longer."""
        self.waiting[turn.part].remove(turn)
        if not self.waiting[turn.part]:
            del self.waiting[turn.part]


class FairQueue:
    """So many places for all shares and for each."""

    def __init__(self, places: int, places_each: int) -> None:
        self.running = 0
        self._places, self._places_each = places, places_each
        self._shares: dict[bytes, Share] = {}  # the one that started last is the last
        self._average = inf  # tokens of a request, smoothed
        self._usual: dict[bytes, float] = {}  # of a share's, which may have none now

    def running_of(self, share: bytes) -> int:
        """Requests of a share that run."""
        return self._shares[share].running if share in self._shares else 0

    def add(self, share: bytes, cost: int, part: bytes = b"", places: int | None = None) -> Turn:
        """A request waits; `places` of its share may run, by default as many as of each."""
        turn = Turn(share, cost, part)
        places = self._places_each if places is None else places
        known = self._shares.setdefault(share, Share(places))
        known.places = places
        known.waiting.setdefault(part, deque()).append(turn)
        return turn

    def start(self) -> list[Turn]:
        """Give free places away; those whose turn has come."""
        started = []
        while self.running < self._places and (ready := self._ready()):
            started.append(self._start(ready))
        return started

    def leave(self, turn: Turn, used: float | None = None) -> None:
        """A request has ended, and has used so many tokens, by default what it may use; or it waits
        no longer.
        """
        share = self._shares[turn.share]
        if turn.running:
            self.running -= 1
            share.running -= 1
            used = turn.cost if used is None else used
            share.credit += turn.charged - used
            usual = self._usual.pop(turn.share, used)
            self._usual[turn.share] = usual + WEIGHT * (used - usual)
            if len(self._usual) > REMEMBERED:
                del self._usual[next(iter(self._usual))]
            known = used if self._average == inf else self._average
            self._average = known + WEIGHT * (used - known)
        else:
            share.drop(turn)
        if not share.waiting:
            share.credit = 0
        if not (share.waiting or share.running):
            del self._shares[turn.share]

    def _charge(self, turn: Turn) -> float:
        """Tokens that a request is charged when it starts."""
        return min(turn.cost, self._usual.get(turn.share, self._average))

    def _lacking(self, share: Share) -> float:
        """Tokens of credit that the next request of a share needs."""
        return max(0.0, self._charge(share.next) - share.credit)

    def _ready(self) -> list[Share]:
        shares = self._shares.values()
        return [share for share in shares if share.waiting and share.running < share.places]

    def _start(self, ready: list[Share]) -> Turn:
        """The request of the share that needs least credit; all get that much, so that who waited
        while others started is ahead of them. A round of this size has exactly one start.
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
    """How long a request that was refused is to wait, by the service rate: `interval` is the usual
    seconds between two ends; `refused` requests are still to be sent again.
    """

    interval: float | None = None
    refused: int = 0
    last: float | None = None

    def ended(self, now: float) -> None:
        """A request ended, so that another one may come."""
        if self.last is not None:
            pause = min(now - self.last, MAX_RETRY_SECONDS)
            usual = pause if self.interval is None else self.interval
            self.interval = usual + WEIGHT * (pause - usual)
        self.last = now
        self.refused = max(0, self.refused - 1)

    def retry_after(self) -> float:
        """Seconds for one more that is refused: until as many have ended as were refused before,
        so that they do not all come back together.
        """
        if self.interval is None:
            return UNKNOWN_RETRY_SECONDS
        delay = (self.refused + 1) * self.interval
        if delay < MAX_RETRY_SECONDS:
            self.refused += 1
        return min(max(MIN_RETRY_SECONDS, delay), MAX_RETRY_SECONDS)
