"""Compose the next step from all short segments, the draft rows that are worth their cost, and as
many tokens of long prompts as do not delay the other sessions too much.

The module is pure. The segments that were fed least recently come first, so a segment that was left
out of one step comes early in the next step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.core_waits import CoreWaits
from tandem.engine.schedule.cost import AverageStepTimes, CostModel, StepLoad
from tandem.protos.types import MAX_NODES

UNKNOWN_PRICE = 0.1  # assumed price of a row until the cost model has learned from a step
# maximum length of a short prefix, in tokens; longer prefixes are fed in chunks, as time allows
SHORT_PREFIX = 16
# after so many seconds without a decoding segment, no session counts as decoding
RESTING_SECONDS = 1.0
MIN_PROMPT_CHUNK = 16  # minimum tokens of a step's first prompt chunk, so that prompts advance


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits of one step, which holds at most `sessions` sessions and `tokens` tokens. Prompts
    may lengthen a step that serves decoding sessions by the factor 1 + `slack`. A step that
    contains only prompts may take about `seconds`, because a session that becomes ready to decode
    has to wait for the end of that step.
    """

    sessions: int = 32
    tokens: int = 512
    slack: float = 0.5
    seconds: float = 0.25


@dataclass(slots=True)
class DecodeSeconds:
    """The smoothed duration of a step that serves the currently decoding sessions."""

    seconds: float = 0.0
    last: float = -math.inf

    def observe(self, seconds: float, now: float) -> None:
        """Record that a step with decoding sessions would have taken `seconds` without prompts."""
        weight = 1.0 if now - self.last > RESTING_SECONDS else 0.2
        self.seconds += weight * (seconds - self.seconds)
        self.last = now

    def at(self, now: float) -> float:
        """Return the smoothed duration of a step, or 0 if no session has decoded recently."""
        return self.seconds if now - self.last <= RESTING_SECONDS else 0.0


@dataclass(slots=True)
class StepCosts:
    """Learns from executed steps: the cost of each kind of load, the usual duration of steps with
    decoding sessions, average step times, and how long the thread waits for processor cores.
    """

    model: CostModel = field(default_factory=CostModel)
    decode_seconds: DecodeSeconds = field(default_factory=DecodeSeconds)
    averages: AverageStepTimes = field(default_factory=AverageStepTimes)
    core_waits: CoreWaits = field(default_factory=CoreWaits)
    # load of the newest step without a long prompt
    _decoded: StepLoad = field(default_factory=StepLoad)

    def learn(self, batch: Batch, load: StepLoad, seconds: float, now: float) -> None:
        """Learn from a finished step: from its batch, its load and its duration."""
        chunks = [allocation.chunk for allocation in batch.allocations]
        self.model.learn(load, seconds)
        if decoding := [load_of(chunk) for chunk in chunks if is_decoding(chunk)]:
            self.decode_seconds.observe(self.model.predict(sum(decoding, StepLoad())), now)
        if len(decoding) == len(chunks):
            num_logits = sum(chunk.num_logits for chunk in chunks)
            self.averages.observe(seconds, num_logits, batch.expected)
            self._decoded = load
        else:
            self.averages.predicted(self.model.predict(self._decoded))


def load_of(segment: Segment) -> StepLoad:
    """Return the load that a segment adds to a step."""
    return StepLoad.chunk(len(segment.tokens), segment.context + segment.cached)


def is_long(segment: Segment) -> bool:
    """Return whether a segment is a prompt that may be fed in chunks."""
    return segment.divisible or segment.prefillable > SHORT_PREFIX


def is_decoding(segment: Segment) -> bool:
    """Return whether a segment belongs to a decoding session: it requests logits and is not a long
    prompt.
    """
    return segment.num_logits > 0 and not is_long(segment)


@dataclass(slots=True)
class Allocation:
    """The part of a segment that a step feeds: a `chunk` of the segment, or the whole segment and
    `rows` additional draft rows.
    """

    index: int
    chunk: Segment
    rows: int = 0


@dataclass(slots=True)
class Batch:
    """A composed step: what the step feeds of each segment (`allocations`), the expected number of
    tokens that the step yields (`expected`), and the acceptance probability that one more row would
    have needed to be worth its cost (`price`).
    """

    allocations: list[Allocation]
    expected: float
    price: float


def compose(
    segments: Sequence[Segment],
    chances: Callable[[int], Iterator[float]],
    cost: CostModel,
    limits: StepLimits,
    decode_seconds: float,
) -> Batch:
    """Compose the next step. `chances(i)` yields the acceptance probabilities of the draft rows
    that may be added to segment i. `decode_seconds` is the usual duration of a step that serves the
    decoding sessions, or 0 if no session is decoding.

    Short segments and draft rows are limited by `limits.sessions` and `limits.tokens`. If a long
    prompt waits, one session and MIN_PROMPT_CHUNK tokens of the step are reserved for long prompts.
    The first segment is always taken if it is short. Chunks of long prompts are also limited by the
    time that the step may take. The first chunk of a step may exceed the time limit with up to
    MIN_PROMPT_CHUNK tokens, so that one long prompt advances in every step.
    """
    allocations: list[Allocation] = []
    total = StepLoad()
    session_limit, token_limit = limits.sessions, limits.tokens
    if any(map(is_long, segments)):
        session_limit, token_limit = session_limit - 1, token_limit - MIN_PROMPT_CHUNK
    for index, segment in enumerate(segments):
        within_tokens = total.tokens + len(segment.tokens) <= token_limit
        fits = within_tokens and len(allocations) < session_limit
        if not is_long(segment) and (fits or index == 0):
            allocations.append(Allocation(index, segment))
            total += load_of(segment)
    added, expected, price = add_rows(allocations, chances, cost, total, token_limit - total.tokens)
    total += added
    usual = max(decode_seconds, cost.predict(total) if allocations else 0.0)
    allowed = usual * (1 + limits.slack) if usual else limits.seconds
    for index, segment in enumerate(segments):
        left = min(limits.tokens - total.tokens, len(segment.tokens))
        if not is_long(segment) or left <= 0 or len(allocations) == limits.sessions:
            continue
        timely = cost.tokens_within(allowed, total, segment.context, left)
        advanced = any(is_long(segments[allocation.index]) for allocation in allocations)
        if timely < MIN_PROMPT_CHUNK and advanced:
            break
        left = max(timely, min(MIN_PROMPT_CHUNK, left))
        whole = left >= len(segment.tokens)
        chunk = segment if whole else segment.first(min(left, segment.prefillable))
        allocations.append(Allocation(index, chunk))
        total += load_of(chunk)
    return Batch(allocations, expected, price)


def add_rows(
    allocations: Sequence[Allocation],
    chances: Callable[[int], Iterator[float]],
    cost: CostModel,
    total: StepLoad,
    most: int,
) -> tuple[StepLoad, float, float]:
    """Add at most `most` draft rows to the allocations, likeliest rows first, as long as the next
    row increases the step's tokens per second. A draft row is worth its cost if its acceptance
    probability is at least its price: row seconds x expected tokens / step seconds. An allocation
    without draft rows counts as 1 expected token. Returns the added load, the expected number of
    tokens of the step, and the price of the next row.
    """
    waiting = [(allocation, chances(allocation.index)) for allocation in allocations]
    heap = [
        (-chance, number) for number, (_, more) in enumerate(waiting) if (chance := next(more, 0.0))
    ]
    heapify(heap)
    expected, seconds, added = float(len(allocations)), cost.predict(total), StepLoad()
    price = 0.0
    while True:
        allocation, more = waiting[heap[0][1]] if heap else (None, None)
        keys = allocation.chunk.context + len(allocation.chunk.parents) if allocation else 0
        row = StepLoad(1, keys + 1, 0)
        price = cost.marginal(row) * expected / seconds if seconds else UNKNOWN_PRICE
        if allocation is None or more is None or added.tokens >= most or -heap[0][0] < price:
            return added, expected, price
        expected -= heap[0][0]
        seconds += cost.marginal(row)
        added += row
        allocation.rows += 1
        number = heap[0][1]
        if allocation.rows < MAX_NODES and (chance := next(more, 0.0)):
            heapreplace(heap, (-chance, number))
        else:
            heappop(heap)
