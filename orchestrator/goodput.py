"""How much drafting pays: tokens per second with a draft and without, from what rounds took.

Pure. `Goodput` knows what rounds cost on one worker, whoever they were for; `Adaptive` knows how
well one generation is guessed. A draft is worth its node as long as the node stands with a chance
above the tokens that its time would yield otherwise (maths: online stopping, the Dinkelbach form).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from protos.types import NO_DRAFT_SHAPE, DraftShape

HORIZON = 40.0  # rounds after which an observation of costs counts for 1/e
MEMORY = 24.0  # rounds of a generation, of how it is guessed
PRIOR = 3.0  # rounds that the worker's experience counts for in a new generation
HYSTERESIS = 0.03
MOST_SURPRISE = 4.0  # times the mean, that one observation may count for
HOPE = 2.0  # tokens more than the first round with a draft emitted may be typical
MOSTLY = 0.7  # of the newest rounds are of one kind, when costs of that kind are learned
TRIAL = 3  # rounds of every generation, for which all do what is believed to be worse
PROBING = 0.005  # of the time may be lost by that
LEAST_SHARE = 0.2  # of the time to verify, that no nodes of drafts can explain
LEAST_LOSS = 0.1  # of a round without a draft, that a round of a trial counts for
FIRST = DraftShape(4, 1, 8)  # what is drafted at most while costs are unknown
MOST_TRUST, LEAST_TRUST = 0.7, -3.0
SLOW, FAST = 0.02, 0.1  # pace of learning whom to trust: of a worker, of a generation


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round drafted and what came of it."""

    levels: int  # of the draft
    nodes: int
    expected: float  # nodes that the drafter took to stand; 0 = it did not say
    accepted: int
    asked: bool  # a drafter
    propose_seconds: float
    draft_seconds: float  # of them, the drafter's own
    verify_seconds: float
    token_seconds: float  # that the verifier says one more token costs


@dataclass(slots=True)
class Mean:
    """A mean that forgets."""

    horizon: float
    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        """Take one more value."""
        if self.weight > 1:  # a call that hung must not be taken for what calls cost
            value = min(value, MOST_SURPRISE * self.value)
        self.weight = self.weight * (1 - 1 / self.horizon) + 1
        self.value += (value - self.value) / self.weight

    def fade(self, horizon: float) -> None:
        """Forget without a new value."""
        self.weight *= 1 - 1 / horizon


@dataclass(slots=True)
class Trust:
    """By how much the drafter misjudges the chance of a token, as a logarithm: with it, as many
    nodes should stand as are expected to.
    """

    log: float = 0.0

    def saw(self, outcome: Outcome, pace: float) -> None:
        """Go a part `pace` of the way to where this round would have been expected; if nothing was
        worth a try, some of the way back.
        """
        if not outcome.nodes:
            self.log *= 1 - pace
        elif outcome.expected:
            slope = 0.5 + outcome.expected * (1 + outcome.levels) / 2  # about d expected / d log
            step = pace * (outcome.accepted - outcome.expected) / slope
            self.log = min(MOST_TRUST, max(LEAST_TRUST, self.log + step))


class Goodput:
    """What rounds cost on one worker, with drafts and without.

    Sessions share steps and wait for each other, so a cost is learned only while most of them do
    the same, and now and then all of them try what is believed to be worse. For the same reason a
    node's cost is counted once for each session that runs.
    """

    def __init__(self) -> None:
        self.running = 0
        self.plain = Mean(HORIZON)  # seconds of a round, if nobody drafts
        self.drafted = Mean(HORIZON)  # seconds of a round, if everybody does
        self.emitted = Mean(HORIZON)  # tokens by a round with a draft
        self.level = Mean(HORIZON)  # seconds of one level of a draft
        self.alone = Mean(HORIZON)  # seconds to verify, less what the nodes of drafts cost
        self.trust = Trust()
        self.trial: bool | None = None  # what all do for a while: draft, or not
        self._left = 0  # rounds of it
        self._credit = 0.0  # seconds that may be lost by trials
        self._share = 0.5  # of the newest rounds that drafted
        self._token_seconds = 0.0

    @property
    def node_seconds(self) -> float:
        """What one more node in every session's draft adds to a round."""
        return self._token_seconds * max(1, self.running)

    @property
    def hoped(self) -> float:
        """Tokens by a round with a draft, with the benefit of the doubt while few were seen."""
        return self.emitted.value + HOPE / max(1.0, self.emitted.weight)

    def gain(self, emitted: float) -> float:
        """The rate of rounds with a draft that emit so many tokens, to that of rounds without."""
        return emitted * self.plain.value / self.drafted.value

    def saw(self, outcome: Outcome) -> None:
        """Learn from a round."""
        seconds = outcome.verify_seconds + outcome.propose_seconds * outcome.asked
        self._token_seconds = outcome.token_seconds
        self._share += (outcome.asked - self._share) / (2 * max(1, self.running))
        if outcome.asked:
            shared = self.node_seconds * outcome.nodes
            least = LEAST_SHARE * outcome.verify_seconds
            self.alone.add(max(outcome.verify_seconds - shared, least))
            self.level.add(outcome.draft_seconds / max(1, outcome.levels))
            self.trust.saw(outcome, SLOW)
            if self._share > MOSTLY:
                self.drafted.add(seconds)
                self.emitted.add(outcome.accepted + 1)
        elif self._share < 1 - MOSTLY:
            self.plain.add(seconds)
        self._credit += PROBING * seconds
        self._try()

    def _try(self) -> None:
        """Begin or end a trial."""
        if self.trial is not None:
            self._left = min(self._left, TRIAL * max(1, self.running)) - 1
            if self._left <= 0:
                self.trial = None
        elif not self.drafted.weight:
            self._begin(True, 0.0)
        elif not self.plain.weight:
            self._begin(False, 0.0)
        elif (gain := self.gain(self.hoped)) < 1:
            self._begin(True, self.drafted.value * (1 - gain))
        else:
            self._begin(False, self.plain.value * (gain - 1))

    def _begin(self, trial: bool, lost: float) -> None:
        """Begin a trial whose rounds cost so many seconds each, if there is credit for it."""
        rounds = TRIAL * max(1, self.running)
        cost = rounds * max(lost, LEAST_LOSS * self.plain.value)
        if self._credit >= cost or not lost:
            self._credit -= min(cost, self._credit)
            self.trial, self._left = trial, rounds


class Adaptive:
    """The draft of one generation: as much as pays, at most the shape `most`, or nothing."""

    def __init__(self, most: DraftShape, goodput: Goodput) -> None:
        self._most, self._goodput = most, goodput
        self._emitted = Mean(MEMORY)
        self._trust = replace(goodput.trust)
        self._drafting = True

    def next(self) -> DraftShape:
        """The shape for a round."""
        goodput = self._goodput
        if goodput.trial is False:
            return NO_DRAFT_SHAPE
        if not goodput.drafted.weight:
            levels = min(FIRST.levels, self._most.levels)
            return replace(self._most, levels=levels, nodes=min(FIRST.nodes, self._most.nodes))
        if not goodput.plain.weight:
            return self._worthwhile(1 / goodput.alone.value)
        weight = self._emitted.weight + PRIOR
        known = self._emitted.value * self._emitted.weight + goodput.hoped * PRIOR
        gain = goodput.gain(known / weight)
        self._drafting = gain > (1 - HYSTERESIS if self._drafting else 1 + HYSTERESIS)
        if not (self._drafting or goodput.trial):
            return NO_DRAFT_SHAPE
        return self._worthwhile(max(1.0, gain) / goodput.plain.value)

    def saw(self, outcome: Outcome) -> None:
        """Learn what it cost and how well this generation is guessed; what is not tried is
        forgotten.
        """
        self._goodput.saw(outcome)
        if outcome.asked:
            self._emitted.add(outcome.accepted + 1)
            self._trust.saw(outcome, FAST)
        else:
            self._emitted.fade(HORIZON)

    def _worthwhile(self, rate: float) -> DraftShape:
        """What is worth a look if time otherwise yields `rate` tokens per second."""
        return replace(
            self._most,
            worth=rate * self._goodput.node_seconds,
            level_worth=rate * self._goodput.level.value,
            trust=math.exp(self._trust.log),
        )
