"""How much drafting pays: tokens per second with a draft and without, from what rounds took.

Pure. `Goodput` knows what rounds cost on one worker, whoever they were for; `Adaptive` knows how
well one generation is guessed. A draft is worth its node as long as the node stands with a chance
above the tokens that its time would yield otherwise (maths: online stopping, the Dinkelbach form).
"""

from __future__ import annotations

import math
from dataclasses import replace
from weakref import WeakSet

from orchestrator.costs import HORIZON, STALE, Costs
from orchestrator.learning import Mean, Outcome, Trust
from protos.types import NO_DRAFT_SHAPE, DraftShape

LONG = 200.0  # the same for how far drafters are right
MEMORY = 24.0  # rounds of a generation, of how it is guessed
PRIOR = 6.0  # rounds that the worker's experience counts for in a generation
HYSTERESIS = 0.03
RANKS = 0.25  # what a generation must gain to do what the others of a crowd do not
MOSTLY = 0.85  # of the generations do the same, when the cost of that is learned
TRIAL = 4  # rounds of every generation, for which all do what is believed to be worse
LESSON = 12  # the same for the first drafts of a worker
PROBING = 0.005  # of the time may be lost by that
EARLY = 0.5  # rounds more, each time a worker has lived e times as long
RESTLESS = 0.2  # of a round without a draft, that is lost by doing in a trial what nobody did
SLOW, FAST = 0.02, 0.1  # pace of learning whom to trust: of a worker, of a generation
FIRST = DraftShape(4, 1, 8)  # what is drafted at most while costs are unknown


class Goodput:
    """What rounds cost on one worker, with drafts and without, and what most of its generations do.

    Sessions share steps and wait for each other. So a round's cost depends on what the others do:
    they draft together or not at all, but for those who gain much by doing otherwise; a cost is
    learned only from rounds during which most did the same; and now and then all of them try what
    is believed to be worse. For the same reason a node is paid for by each session that runs.
    """

    def __init__(self) -> None:
        self.running = 0
        self.costs = Costs()
        self.promised = Mean(HORIZON)  # tokens by a round with a draft
        self.surprise = Mean(LONG, 0.0, STALE)  # by how many it emits more than that
        self.trust = Trust()
        self.drafting = True  # what is believed to be better
        self.trial: bool | None = None  # what all do for a while: draft, or not
        self.mixed = [0, 0]  # how often too few did the same: not to draft, to draft
        self._doing: tuple[WeakSet[Adaptive], WeakSet[Adaptive]] = (WeakSet(), WeakSet())
        self._most = True  # draft
        self._lessons = [(False, TRIAL), (True, LESSON)]  # trials before anything is believed
        self._length = TRIAL  # of the trial, in rounds of each generation
        self._left = math.inf  # rounds of it
        self._credit = 0.0  # seconds that may be lost by trials
        self._rounds = 0.0  # of each generation, so far

    @property
    def crowd(self) -> int:
        """How many generations share a round's steps, with the one that asks."""
        return max(1, self.running)

    @property
    def node_seconds(self) -> float:
        """What one more node in every session's draft adds to a round."""
        return self.costs.node_seconds(self.crowd)

    @property
    def ranks(self) -> float:
        """What a generation must gain to do otherwise than most; one alone is most."""
        return HYSTERESIS + RANKS * (1 - 1 / self.crowd)

    def gain(self, promised: float) -> float:
        """The rate of rounds with a draft that promise so many tokens, to that of plain ones."""
        emitted = max(1.0, promised + self.surprise.value)
        return emitted * self.costs.plain.value / self.costs.drafted.value

    def begins(self, generation: Adaptive, drafting: bool, first: bool) -> None:
        """A generation begins a round, perhaps with its `first` draft; in a trial all begin at once
        with that, and it keeps the others waiting more than it will.
        """
        self._doing[not drafting].discard(generation)
        self._doing[drafting].add(generation)
        doing = [len(each) for each in self._doing]
        for kind in (False, True):
            few = doing[kind] < MOSTLY * sum(doing)
            self.mixed[kind] += few or (first and self.trial is kind)
        self._most = doing[True] > doing[False]

    def saw(self, outcome: Outcome, among_others: bool = False) -> None:
        """Learn from a round; `among_others`: during it most did something else."""
        seconds = outcome.verify_seconds + outcome.propose_seconds * outcome.asked
        part = 1 / self.crowd
        self._rounds += part
        self._credit += (PROBING + EARLY / max(1.0, self._rounds)) * seconds
        usual, tried = (
            self.trial is None and outcome.asked is self._most,
            outcome.asked is self.trial,
        )
        if tried:
            self._tried(seconds, outcome.accepted + 1)
        if outcome.asked:
            self.promised.add(outcome.promised, part)
            self.surprise.add(outcome.accepted + 1 - outcome.promised, part)
            self.trust.saw(outcome, SLOW)
        else:
            for stale in (self.promised, self.surprise):
                stale.fade(part, STALE)
        self.costs.heard(outcome, self.crowd)
        if not among_others:
            self.costs.saw(outcome, self.crowd, usual, tried)
        self._decide()

    def _tried(self, seconds: float, emitted: int) -> None:
        """A round of a trial is over: pay for what better ones would have taken less."""
        if self.costs.known:
            plain = self.costs.plain.value
            best = plain / max(1.0, self.gain(self.promised.value))
            self._credit -= seconds - best * emitted + RESTLESS * plain
        self._left = min(self._left, self._length * self.crowd) - 1
        if self._left <= 0:
            self.trial = None

    def _decide(self) -> None:
        """What most do from now on; begin or end a trial."""
        if self._lessons:
            if self.trial is None:
                self._begin(*self._lessons.pop(0))
        elif self.costs.known:
            gain = self.gain(self.promised.value)
            plain, drafted = self.costs.plain.value, self.costs.drafted.value
            self.drafting = gain > (1 - HYSTERESIS if self.drafting else 1 + HYSTERESIS)
            lost = plain * (gain - 1) if self._most else drafted * (1 - gain)
            fee = max(lost, 0.0) + RESTLESS * plain
            most = TRIAL * self.crowd * fee
            self._credit = min(most, max(-most, self._credit))
            if self._credit == most and self.trial is None:
                self._begin(not self._most)

    def _begin(self, trial: bool, length: int = TRIAL) -> None:
        """Begin a trial."""
        self.trial, self._length, self._left = trial, length, math.inf


class Adaptive:
    """The draft of one generation: as much as pays, at most the shape `most`, or nothing."""

    def __init__(self, most: DraftShape, goodput: Goodput) -> None:
        self._most, self._goodput = most, goodput
        self._promised = Mean(MEMORY)
        self._began = False  # to draft
        self._trust = replace(goodput.trust)
        self._mixed = list(goodput.mixed)

    def next(self) -> DraftShape:
        """The shape for a round."""
        self._mixed = list(self._goodput.mixed)
        shape = self._shape()
        drafting = shape.levels > 0
        self._goodput.begins(self, drafting, drafting and not self._began)
        self._began |= drafting
        return shape

    def saw(self, outcome: Outcome) -> None:
        """Learn what it cost and how well this generation is guessed; what is not tried is
        forgotten.
        """
        among_others = self._mixed[outcome.asked] != self._goodput.mixed[outcome.asked]
        self._goodput.saw(outcome, among_others)
        if outcome.asked:
            self._promised.add(outcome.promised)
            self._trust.saw(outcome, FAST)
        else:
            self._promised.fade()

    def _shape(self) -> DraftShape:
        goodput = self._goodput
        if goodput.trial is False:
            return NO_DRAFT_SHAPE
        if not (goodput.costs.level.weight and goodput.costs.plain.weight):
            levels, nodes = min(FIRST.levels, self._most.levels), min(FIRST.nodes, self._most.nodes)
            return replace(self._most, levels=levels, nodes=nodes)
        if not goodput.costs.drafted.weight:
            return self._worthwhile(1 / goodput.costs.plain.value)
        own, all_ = self._promised, goodput.promised
        weight = own.weight + PRIOR
        gain = goodput.gain((own.value * own.weight + all_.value * PRIOR) / weight)
        pays = gain > (1 - goodput.ranks if goodput.drafting else 1 + goodput.ranks)
        if not (pays or goodput.trial):
            return NO_DRAFT_SHAPE
        return self._worthwhile(max(1.0, gain) / goodput.costs.plain.value)

    def _worthwhile(self, rate: float) -> DraftShape:
        """What is worth a look if time otherwise yields `rate` tokens per second."""
        return replace(
            self._most,
            worth=rate * self._goodput.node_seconds,
            level_worth=rate * self._goodput.costs.level.value,
            trust=math.exp(self._trust.log),
        )
