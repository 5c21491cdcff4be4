"""What goes into the next step: everything short, rows that pay, and as much of long prompts as
delays nobody.

Pure. Segments come least recently fed first, so whoever was left out is next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from engine.forward.segment import Segment
from engine.schedule.cost import CostModel, Load
from protos.types import MAX_NODES

UNKNOWN_PRICE = 0.1  # of a row, before any step was learned from
SHORT = 16  # tokens; a longer head is fed in pieces, as time allows, to the last
RESTING_SECONDS = 1.0  # without a short segment, until nobody counts as decoding
PIECE = 16  # tokens of a long head that a step takes at least, so that every prompt gets on


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold. A step that serves sessions which are decoding may take `slack` times
    longer for the sake of new prompts; one that serves prompts alone takes about `seconds`, since
    somebody may come.
    """

    sessions: int = 32
    tokens: int = 512
    slack: float = 0.5
    seconds: float = 0.25


@dataclass(slots=True)
class Pace:
    """How many seconds a step takes that serves the sessions now decoding, smoothed."""

    seconds: float = 0.0
    seen: float = -math.inf

    def saw(self, seconds: float, now: float) -> None:
        """A step served decoding sessions; without prompts it would take so long."""
        weight = 1.0 if now - self.seen > RESTING_SECONDS else 0.2
        self.seconds += weight * (seconds - self.seconds)
        self.seen = now

    def at(self, now: float) -> float:
        """0 if no session has been decoding lately."""
        return self.seconds if now - self.seen <= RESTING_SECONDS else 0.0


def load(segment: Segment) -> Load:
    """What feeding a segment costs."""
    return Load.chunk(len(segment.tokens), segment.context + segment.cached)


def is_long(segment: Segment) -> bool:
    """Whether a segment is a prompt that may be fed in pieces."""
    return segment.head > SHORT


def is_decoding(segment: Segment) -> bool:
    """Whether somebody waits for logits, and not for those of a long prompt."""
    return segment.wanted > 0 and not is_long(segment)


@dataclass(slots=True)
class Share:
    """What one segment gets of a step: a `piece` of it, or all of it and `rows` more."""

    index: int
    piece: Segment
    rows: int = 0


@dataclass(slots=True)
class Batch:
    """A step: who gets what, the tokens that it should yield, and the chance that a row more would
    have had to have.
    """

    shares: list[Share]
    expected: float
    price: float


def compose(
    segments: Sequence[Segment],
    chances: Callable[[int], Iterator[float]],
    cost: CostModel,
    limits: Limits,
    pace: float,
) -> Batch:
    """The next step. `chances(i)` are those of rows that may be added to segment i, and `pace` is
    how many seconds a step takes that serves the sessions now decoding, 0 if none is.
    """
    shares: list[Share] = []
    total = Load()
    most, tokens = limits.sessions, limits.tokens
    if any(map(is_long, segments)):  # one of them gets on in every step
        most, tokens = most - 1, tokens - PIECE
    for index, segment in enumerate(segments):
        fits = len(shares) < most and total.tokens + len(segment.tokens) <= tokens
        if not is_long(segment) and (fits or index == 0):
            shares.append(Share(index, segment))
            total += load(segment)
    added, expected, price = add_rows(shares, chances, cost, total, tokens - total.tokens)
    total += added
    usual = max(pace, cost.predict(total) if shares else 0.0)
    allowed = usual * (1 + limits.slack) if usual else limits.seconds
    for index, segment in enumerate(segments):
        room = min(limits.tokens - total.tokens, len(segment.tokens))
        if not is_long(segment) or room <= 0 or len(shares) == limits.sessions:
            continue
        timely = cost.tokens_within(allowed, total, segment.context, room)
        if timely < PIECE and any(is_long(segments[share.index]) for share in shares):
            break
        room = max(timely, min(PIECE, room))
        piece = segment if room >= len(segment.tokens) else segment.first(min(room, segment.head))
        shares.append(Share(index, piece))
        total += load(piece)
    return Batch(shares, expected, price)


def add_rows(
    shares: Sequence[Share],
    chances: Callable[[int], Iterator[float]],
    cost: CostModel,
    total: Load,
    most: int,
) -> tuple[Load, float, float]:
    """Add rows to the shares, likeliest first over all, while the step yields more per second with
    the next one: while its chance is above its price, row seconds x expected yield / step seconds.
    A share yields 1 without any. Returns what was added, the yield, and the price at the end.
    """
    waiting = [(share, chances(share.index)) for share in shares]
    heap = [
        (-chance, place) for place, (_, more) in enumerate(waiting) if (chance := next(more, 0.0))
    ]
    heapify(heap)
    expected, seconds, added = float(len(shares)), cost.predict(total), Load()
    price = 0.0
    while True:
        share, more = waiting[heap[0][1]] if heap else (None, None)
        keys = share.piece.context + len(share.piece.parents) if share else 0
        row = Load(1, keys + 1, 0)
        price = cost.marginal(row) * expected / seconds if seconds else UNKNOWN_PRICE
        if share is None or more is None or added.tokens >= most or -heap[0][0] < price:
            return added, expected, price
        expected -= heap[0][0]
        seconds += cost.marginal(row)
        added += row
        share.rows += 1
        place = heap[0][1]
        if share.rows < MAX_NODES and (chance := next(more, 0.0)):
            heapreplace(heap, (-chance, place))
        else:
            heappop(heap)
