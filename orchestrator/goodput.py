"""How much drafting pays: tokens per second with a draft and without, from what rounds took.

Pure. `Goodput` knows what rounds cost on one worker, whoever they were for; `Adaptive` knows how
well one generation is guessed. A draft is worth its node as long as the node stands with a chance
above the tokens that its time would yield otherwise (maths: online stopping, the Dinkelbach form).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from protos.types import NO_DRAFT_SHAPE, DraftShape

HORIZON = 40.0  # rounds after which an observation of costs counts for 1/e
MEMORY = 12.0  # rounds of a generation, of how it is guessed
PRIOR = 3.0  # rounds that the worker's experience counts for in a new generation
CLEAN = 4.0  # times that a round without a draft counts for, in what it costs not to draft
HYSTERESIS = 0.03
PROBING = 0.005  # of the time may be lost by trying what is believed to be worse
LEAST_LOSS = 0.1  # of a round without a draft, that trying the other way counts for
NODES_PRIOR = 6.0  # expected nodes of which as many are taken to stand, before any are seen


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round drafted and what came of it."""

    levels: int  # of the draft
    nodes: int
    expected: float  # nodes that the drafter took to stand; 0 = it did not say
    accepted: int
    asked: bool  # a drafter
    propose_seconds: float
    verify_seconds: float
    token_seconds: float  # that the verifier says one more token costs


@dataclass(slots=True)
class Mean:
    """A mean that forgets."""

    horizon: float
    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Take one more value."""
        self.weight = self.weight * (1 - 1 / self.horizon) + weight
        self.value += (value - self.value) * weight / self.weight


@dataclass(slots=True)
class Line:
    """seconds = start + slope * levels, by least squares that forget; with little to go by, every
    level costs what the start does.
    """

    levels: Mean = field(default_factory=lambda: Mean(HORIZON))
    seconds: Mean = field(default_factory=lambda: Mean(HORIZON))
    spread: Mean = field(default_factory=lambda: Mean(HORIZON))
    common: Mean = field(default_factory=lambda: Mean(HORIZON))

    def add(self, levels: float, seconds: float) -> None:
        """Take one more call."""
        self.levels.add(levels)
        self.seconds.add(seconds)
        off = levels - self.levels.value
        self.spread.add(off * off)
        self.common.add(off * (seconds - self.seconds.value))

    @property
    def slope(self) -> float:
        """Seconds for one more level, not below 0."""
        even = self.seconds.value / (self.levels.value + 1)
        return max(0.0, (self.common.value + 0.1 * even) / (self.spread.value + 0.1))


class Goodput:
    """What rounds cost on one worker. Sessions share the verifier's steps, so a node of one delays
    all that run: its cost is counted once for each.
    """

    def __init__(self) -> None:
        self.running = 0
        self.plain = Mean(HORIZON)  # seconds to verify, if nobody drafted
        self.propose = Line()
        self.nodes = Mean(HORIZON)  # of a round, 0 without a draft
        self.emitted = Mean(HORIZON)  # by a round with a draft
        self.extra = Mean(HORIZON)  # seconds that a draft added to a round
        self.credit = 0.0  # seconds that may be lost by trying
        self._token_seconds = 0.0

    @property
    def node_seconds(self) -> float:
        """What one more node in every session's draft adds to a round."""
        return self._token_seconds * max(1, self.running)

    def saw(self, outcome: Outcome) -> None:
        """Learn what a round cost."""
        self._token_seconds = outcome.token_seconds
        others = self.nodes.value * max(0, self.running - 1)
        shared = self._token_seconds * (outcome.nodes + others)
        alone = max(outcome.verify_seconds - shared, 0.2 * outcome.verify_seconds)
        self.plain.add(alone, 1.0 if outcome.nodes else CLEAN)
        self.nodes.add(outcome.nodes)
        if outcome.asked:
            self.propose.add(outcome.levels, outcome.propose_seconds)
            self.emitted.add(outcome.accepted + 1)
            self.extra.add(self.added(outcome))
        self.credit += PROBING * (outcome.propose_seconds + outcome.verify_seconds)

    def added(self, outcome: Outcome) -> float:
        """Seconds that the draft of a round added to it."""
        return outcome.propose_seconds + self.node_seconds * outcome.nodes


class Adaptive:
    """The draft of one generation: as much as pays, at most the shape `most`, or nothing."""

    def __init__(self, most: DraftShape, goodput: Goodput) -> None:
        self._most, self._goodput = most, goodput
        self._emitted, self._extra = Mean(MEMORY), Mean(MEMORY)
        self._expected, self._accepted = Mean(MEMORY), Mean(MEMORY)
        self._drafting = True

    def next(self) -> DraftShape:
        """The shape for a round."""
        goodput = self._goodput
        plain = goodput.plain.value
        if not (plain and goodput.extra.weight):
            return self._most
        emitted = self._shrunk(self._emitted, goodput.emitted)
        extra = self._shrunk(self._extra, goodput.extra)
        gain = emitted * plain / (plain + extra)  # rate with a draft to rate without
        self._drafting = gain > (1 - HYSTERESIS if self._drafting else 1 + HYSTERESIS)
        lost = extra - (emitted - 1) * plain if gain < 1 else plain * (gain - 1)
        draft = self._drafting
        lost = max(lost, LEAST_LOSS * plain)
        if goodput.credit >= lost:
            goodput.credit -= lost
            draft = not draft
        return self._shape(max(1.0, gain) / plain) if draft else NO_DRAFT_SHAPE

    def saw(self, outcome: Outcome) -> None:
        """Learn how well this generation is guessed."""
        if outcome.asked:
            self._emitted.add(outcome.accepted + 1)
            self._extra.add(self._goodput.added(outcome))
            self._expected.add(outcome.expected)
            self._accepted.add(outcome.accepted)

    def _shape(self, rate: float) -> DraftShape:
        """What is worth a look if time otherwise yields `rate` tokens per second."""
        seen = self._expected.value * self._expected.weight
        stood = self._accepted.value * self._accepted.weight
        trust = (stood + NODES_PRIOR) / (seen + NODES_PRIOR) if seen else 1.0
        return replace(
            self._most,
            worth=rate * self._goodput.node_seconds / trust,
            level_worth=rate * self._goodput.propose.slope / trust,
        )

    @staticmethod
    def _shrunk(own: Mean, common: Mean) -> float:
        weight = own.weight + PRIOR
        return (own.value * own.weight + common.value * PRIOR) / weight
