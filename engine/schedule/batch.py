"""Compose the next step: all short segments, draft rows that pay, and as much of long prompts as
does not delay the others.

Pure. Segments come least recently fed first, so a segment that was left out comes next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.cost import CostModel, Rates, StepLoad
from tandem.protos.types import MAX_NODES

UNKNOWN_PRICE = 0.1  # price of a row before any step was learned from
SHORT = 16  # tokens; a longer head is fed in pieces, as time allows
RESTING_SECONDS = 1.0  # without a short segment, until no session counts as decoding
PIECE = 16  # tokens of a long head that a step takes at least, so that every prompt advances


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits of one step: how many sessions and tokens it may hold. A step that serves decoding
    sessions may grow by the factor 1 + `slack` to let new prompts in. A step of prompts alone takes
    about `seconds`, since a session may start to decode.
    """

    sessions: int = 32
    tokens: int = 512
    slack: float = 0.5
    seconds: float = 0.25


@dataclass(slots=True)
class Pace:
    """The smoothed seconds of a step that serves the sessions which are decoding now."""

    seconds: float = 0.0
    last: float = -math.inf

    def observe(self, seconds: float, now: float) -> None:
        """Note a step that served decoding sessions; without prompts it would take `seconds`."""
        weight = 1.0 if now - self.last > RESTING_SECONDS else 0.2
        self.seconds += weight * (seconds - self.seconds)
        self.last = now

    def at(self, now: float) -> float:
        """Return the smoothed seconds of a step; 0 if no session has been decoding lately."""
        return self.seconds if now - self.last <= RESTING_SECONDS else 0.0


class StepCosts:
    """Learns from steps what work costs, and how long steps with decoding sessions take."""

    def __init__(self) -> None:
        self.model, self.pace, self.rates = CostModel(), Pace(), Rates()
        self._decoded = StepLoad()  # load of the newest step in which no long prompt was read

    def learn(self, batch: Batch, load: StepLoad, seconds: float, now: float) -> None:
        """Learn from a step that is done: its batch, its load and how long it took."""
        pieces = [share.piece for share in batch.shares]
        self.model.learn(load, seconds)
        if decoding := [load_of(piece) for piece in pieces if is_decoding(piece)]:
            self.pace.observe(self.model.predict(sum(decoding, StepLoad())), now)
        if len(decoding) == len(pieces):
            self.rates.observe(seconds, sum(piece.wanted for piece in pieces), batch.expected)
            self._decoded = load
        else:
            self.rates.predicted(self.model.predict(self._decoded))


def load_of(segment: Segment) -> StepLoad:
    """Return the load that a segment adds to a step."""
    return StepLoad.chunk(len(segment.tokens), segment.context + segment.cached)


def is_long(segment: Segment) -> bool:
    """Return whether a segment is a prompt that may be fed in pieces."""
    return segment.divisible or segment.head > SHORT


def is_decoding(segment: Segment) -> bool:
    """Return whether a segment wants logits and is no long prompt."""
    return segment.wanted > 0 and not is_long(segment)


@dataclass(slots=True)
class StepShare:
    """The share of a step that one segment gets: a `piece` of the segment, or all of it and `rows`
    more rows.
    """

    index: int
    piece: Segment
    rows: int = 0


@dataclass(slots=True)
class Batch:
    """A composed step: the share of each segment, the tokens that it should yield (`expected`), and
    the chance that one more row would have needed to be added (`price`).
    """

    shares: list[StepShare]
    expected: float
    price: float


def compose(
    segments: Sequence[Segment],
    chances: Callable[[int], Iterator[float]],
    cost: CostModel,
    limits: StepLimits,
    pace: float,
) -> Batch:
    """Compose the next step. `chances(i)` yields the chances of the rows that may be added to
    segment i. `pace` is the seconds of a step that serves the sessions which are decoding now, 0 if
    there are none.
    """
    shares: list[StepShare] = []
    total = StepLoad()
    most, tokens = limits.sessions, limits.tokens
    if any(map(is_long, segments)):  # one long prompt advances in every step
        most, tokens = most - 1, tokens - PIECE
    for index, segment in enumerate(segments):
        fits = len(shares) < most and total.tokens + len(segment.tokens) <= tokens
        if not is_long(segment) and (fits or index == 0):
            shares.append(StepShare(index, segment))
            total += load_of(segment)
    added, expected, price = add_rows(shares, chances, cost, total, tokens - total.tokens)
    total += added
    usual = max(pace, cost.predict(total) if shares else 0.0)
    allowed = usual * (1 + limits.slack) if usual else limits.seconds
    for index, segment in enumerate(segments):
        left = min(limits.tokens - total.tokens, len(segment.tokens))
        if not is_long(segment) or left <= 0 or len(shares) == limits.sessions:
            continue
        timely = cost.tokens_within(allowed, total, segment.context, left)
        if timely < PIECE and any(is_long(segments[share.index]) for share in shares):
            break
        left = max(timely, min(PIECE, left))
        piece = segment if left >= len(segment.tokens) else segment.first(min(left, segment.head))
        shares.append(StepShare(index, piece))
        total += load_of(piece)
    return Batch(shares, expected, price)


def add_rows(
    shares: Sequence[StepShare],
    chances: Callable[[int], Iterator[float]],
    cost: CostModel,
    total: StepLoad,
    most: int,
) -> tuple[StepLoad, float, float]:
    """Add rows to the shares, likeliest first over all shares, while the step yields more tokens
    per second with the next row. That is so while the chance of the row is not below its price: row
    seconds x expected yield / step seconds. A share without rows yields 1. Returns the added load,
    the expected yield, and the price at the end.
    """
    waiting = [(share, chances(share.index)) for share in shares]
    heap = [
        (-chance, place) for place, (_, more) in enumerate(waiting) if (chance := next(more, 0.0))
    ]
    heapify(heap)
    expected, seconds, added = float(len(shares)), cost.predict(total), StepLoad()
    price = 0.0
    while True:
        share, more = waiting[heap[0][1]] if heap else (None, None)
        keys = share.piece.context + len(share.piece.parents) if share else 0
        row = StepLoad(1, keys + 1, 0)
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
