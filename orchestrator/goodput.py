"""How much drafting pays: tokens per second with a draft and without, from what rounds took.

Pure. `Goodput` knows the generations of one worker and what is believed of their rounds; `Adaptive`
knows how well one of them is guessed. A draft is worth its node as long as the node stands with a
chance above the tokens that its time would yield otherwise (maths: online stopping, the Dinkelbach
form).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from weakref import WeakSet

from orchestrator.beliefs import HYSTERESIS, SETTLING, Beliefs
from orchestrator.learning import Mean, Outcome, Trust
from protos.types import NO_DRAFT_SHAPE, DraftShape

MEMORY = 24.0  # rounds of a generation, of how it is guessed
PRIOR = 6.0  # rounds that the worker's experience counts for in a generation
RANKS = 0.25  # what a generation must gain to do what the others of a crowd do not
MOSTLY = 0.85  # of the generations do the same, when the cost of that is learned
CHURN = 8.0  # rounds of each, after which a load of another size counts for most
MIXED = 0.25  # of a round of a trial is over, if during it less than that did
SLOW, FAST = 0.02, 0.1  # pace of learning whom to trust: of a worker, of a generation
FIRST = DraftShape(4, 1, 8)  # what is drafted at most while costs are unknown


@dataclass(slots=True)
class Load:
    """All generations of a worker, whatever decides for them: they share the verifier's steps."""

    running: int = 0


class Goodput:
    """What most generations that it decides for do, and what their rounds cost, with drafts and
    without.

    Sessions share steps and wait for each other. So a round's cost depends on how many there are,
    and is learned apart for each doubling; and on what the others do: they draft together or not at
    all, but for those who gain much by doing otherwise; a cost is learned only from rounds during
    which most did the same; and now and then all of them try what is believed to be worse. For the
    same reason a node is paid for by each session that runs.
    """

    def __init__(self, load: Load | None = None) -> None:
        self.running = 0  # generations that it decides for
        self.trust = Trust()
        self.trial: bool | None = None  # what all do for a while: draft, or not
        self.mixed = [0, 0]  # how often too few did the same: not to draft, to draft
        self._load = load or Load()
        self._usual = Mean(CHURN)  # load
        self._beliefs: dict[int, Beliefs] = {}
        self._doing: tuple[WeakSet[Adaptive], WeakSet[Adaptive]] = (WeakSet(), WeakSet())
        self._length = 0  # of the trial, in rounds of each generation
        self._settling = 0  # rounds of it, of all, until they tell something
        self._left = math.inf  # rounds after them

    @property
    def crowd(self) -> int:
        """How many generations it decides for, with the one that asks."""
        return max(1, self.running)

    @property
    def load(self) -> int:
        """How many generations share a round's steps."""
        return max(self.crowd, self._load.running)

    @property
    def beliefs(self) -> Beliefs:
        """What is known of a load of about this size; at first, of the nearest one."""
        size = round(self._usual.value or self.load).bit_length()
        if size not in self._beliefs:
            known = min(self._beliefs, key=lambda other: abs(other - size), default=None)
            here = Beliefs() if known is None else self._beliefs[known].elsewhere()
            self._beliefs[size] = here
        return self._beliefs[size]

    @property
    def node_seconds(self) -> float:
        """What one more node in every session's draft adds to a round."""
        return self.beliefs.costs.node_seconds(self.load)

    @property
    def ranks(self) -> float:
        """What a generation must gain to do otherwise than most; one alone is most."""
        return HYSTERESIS + RANKS * (1 - 1 / self.crowd)

    def begins(self, generation: Adaptive, drafting: bool) -> None:
        """A generation begins a round."""
        if generation not in self._doing[drafting]:
            self._doing[not drafting].discard(generation)
            self._doing[drafting].add(generation)
        plain, drafted = (len(each) for each in self._doing)
        self.mixed[False] += plain < MOSTLY * (plain + drafted)
        self.mixed[True] += drafted < MOSTLY * (plain + drafted)

    def saw(self, outcome: Outcome, among_others: bool = False, missed: bool = False) -> None:
        """Learn from a round; `among_others`: during it most did something else; `missed`: a draft
        was wanted and did not come.
        """
        self._usual.add(self.load, 1 / self.crowd)
        beliefs = self.beliefs
        tried = self.trial is (outcome.asked or missed)
        settling = tried and self._settling > 0
        if outcome.asked:
            self.trust.saw(outcome, SLOW)
        beliefs.saw(outcome, self.crowd, tried and not missed, among_others or settling)
        if missed:
            beliefs.missed(outcome, self.crowd, tried)
        if settling:
            self._settling = min(self._settling, SETTLING * self.crowd) - 1
        elif tried:
            rounds = min(self._left, self._length * self.crowd)
            self._left = rounds - (MIXED if among_others else 1)
            if self._left <= 0:
                self.trial = None
        if self.trial is None and (due := beliefs.due(self.crowd)):
            self.trial, self._length = due
            self._settling, self._left = SETTLING * self.crowd, math.inf


class Adaptive:
    """The draft of one generation: as much as pays, at most the shape `most`, or nothing."""

    def __init__(self, most: DraftShape, goodput: Goodput) -> None:
        self._most, self._goodput = most, goodput
        self._promised = Mean(MEMORY)
        self._drafting = False
        self._trust = replace(goodput.trust)
        self._mixed = list(goodput.mixed)

    def next(self) -> DraftShape:
        """The shape for a round."""
        self._mixed = list(self._goodput.mixed)
        shape = self._shape()
        self._drafting = shape.levels > 0
        self._goodput.begins(self, self._drafting)
        return shape

    def saw(self, outcome: Outcome) -> None:
        """Learn what it cost and how well this generation is guessed; what is not tried is
        forgotten.
        """
        among_others = self._mixed[outcome.asked] != self._goodput.mixed[outcome.asked]
        self._goodput.saw(outcome, among_others, missed=self._drafting and not outcome.asked)
        if outcome.asked:
            self._promised.add(outcome.promised)
            self._trust.saw(outcome, FAST)
        else:
            self._promised.fade()

    def _shape(self) -> DraftShape:
        goodput, beliefs = self._goodput, self._goodput.beliefs
        costs = beliefs.costs
        if goodput.trial is False:
            return NO_DRAFT_SHAPE
        gain = 1.0
        if costs.known:
            own, all_ = self._promised, beliefs.promised
            weight = own.weight + PRIOR
            gain = beliefs.gain((own.value * own.weight + all_.value * PRIOR) / weight)
            pays = gain > (1 - goodput.ranks if beliefs.drafting else 1 + goodput.ranks)
            if not (pays or goodput.trial):
                return NO_DRAFT_SHAPE
        if not (costs.level.weight and costs.plain.weight):
            levels, nodes = min(FIRST.levels, self._most.levels), min(FIRST.nodes, self._most.nodes)
            return replace(self._most, levels=levels, nodes=nodes)
        return self._worthwhile(max(1.0, gain) / costs.plain.value)

    def _worthwhile(self, rate: float) -> DraftShape:
        """What is worth a look if time otherwise yields `rate` tokens per second."""
        return replace(
            self._most,
            worth=rate * self._goodput.node_seconds,
            level_worth=rate * self._goodput.beliefs.costs.level.value,
            trust=math.exp(self._trust.log),
        )
