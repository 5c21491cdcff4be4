"""What rounds tell: what one drafted and what came of it, a mean that forgets, whom to trust.

Pure; `orchestrator.goodput` decides from it how much to draft.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_SURPRISE = 2.0  # times the mean, that one observation may count for
MOST_TRUST, LEAST_TRUST = 0.7, -3.0


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
    began: bool = False  # the generation: the verifier read the prompt first
    opened: bool = False  # the drafter's session: it did so too

    @property
    def emitted(self) -> int:
        """Tokens."""
        return self.accepted + 1

    @property
    def seconds(self) -> float:
        """What the round took; a drafter that did not answer is no part of a plain one."""
        return self.verify_seconds + self.propose_seconds * self.asked

    @property
    def promised(self) -> float:
        """Tokens that the round should emit: what comes of it varies more, and is no better guide
        to the next one if drafters are right on average.
        """
        return 1 + (self.expected or self.accepted)


@dataclass(slots=True)
class Mean:
    """A mean that forgets."""

    horizon: float
    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Take one more value."""
        self.weight = self.weight * (1 - weight / self.horizon) + weight
        self.value += (value - self.value) * weight / self.weight

    def add_cost(self, value: float, weight: float) -> float:
        """Take one more, or as much of it as is likely: a call that hung is not what calls cost.
        Returns what was taken.
        """
        taken = min(value, MOST_SURPRISE * self.value) if self.weight > 1 else value
        self.add(taken, weight)
        return taken

    def fade(self, weight: float = 1.0, least: float = 0.0) -> None:
        """Forget as for one more value, until all weigh `least`."""
        faded = self.weight * (1 - weight / self.horizon)
        self.weight = max(faded, min(self.weight, least))


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
