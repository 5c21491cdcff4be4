"""How much to draft next.

Pure. Asks for what a schedule says, never for more levels than can still be emitted, and for
nothing while the drafter rests after a failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from orchestrator.goodput import Adaptive, Goodput
from orchestrator.learning import Outcome
from protos.types import MAX_LEVELS, MAX_NODES, NO_DRAFT_SHAPE, DraftShape, Schedule

LONGEST_REST = 32  # rounds


class Amount(Protocol):
    """A schedule at work on one generation."""

    def next(self) -> DraftShape:
        """The shape for a round."""

    def saw(self, outcome: Outcome) -> None:
        """What came of it."""


@dataclass(slots=True)
class Constant:
    """Always the same shape."""

    shape: DraftShape

    def next(self) -> DraftShape:
        """The shape for a round."""
        return self.shape

    def saw(self, outcome: Outcome) -> None:
        """Nothing changes."""


@dataclass(slots=True)
class Heuristic:
    """Two levels more after a draft that stood as a whole, else one less, and as many nodes to each
    as at first (transformers' assisted generation, `num_assistant_tokens_schedule`; there
    `heuristic_transient`, since every generation begins anew).
    """

    shape: DraftShape
    width: float = field(init=False)  # nodes to a level

    def __post_init__(self) -> None:
        self.width = max(1, self.shape.nodes) / max(1, self.shape.levels)

    def next(self) -> DraftShape:
        """The shape for a round."""
        return self.shape

    def saw(self, outcome: Outcome) -> None:
        """Longer or shorter."""
        if not outcome.levels:
            return
        levels = self.shape.levels
        levels = levels + 2 if outcome.accepted == outcome.levels else levels - 1
        levels = min(max(1, levels), MAX_LEVELS, int(MAX_NODES / self.width))
        self.shape = replace(self.shape, levels=levels, nodes=max(1, round(levels * self.width)))


def amount(shape: DraftShape, schedule: Schedule, goodput: Goodput) -> Amount:
    """A schedule for one generation, at most or first with a shape."""
    if schedule is Schedule.HEURISTIC:
        return Heuristic(shape)
    if schedule is Schedule.GOODPUT:
        return Adaptive(shape, goodput)
    return Constant(shape)


@dataclass(slots=True)
class Policy:
    """The draft of one generation; after n failures in a row the drafter rests 2^(n-1) rounds."""

    amount: Amount
    wants_draft: bool
    failures: int = field(default=0, init=False)
    rest: int = field(default=0, init=False)
    wanted: bool = field(default=False, init=False)  # in the newest round: a draft, if it pays;
    missed: bool = field(default=False, init=False)  # one was, and did not come

    @classmethod
    def of(
        cls,
        shape: DraftShape,
        schedule: Schedule = Schedule.CONSTANT,
        goodput: Goodput | None = None,
    ) -> Policy:
        """The policy of a schedule; it speculates at all if the shape has levels."""
        return cls(amount(shape, schedule, goodput or Goodput()), shape.levels > 0)

    def next(self, remaining: int) -> DraftShape:
        """The shape for a round when `remaining` tokens may still be emitted; one is the verifier's
        own.
        """
        self.wanted = self.wants_draft and remaining > 1
        self.missed = self.wanted and self.rest > 0
        if self.missed:
            self.rest -= 1
        if self.missed or not self.wanted:
            return NO_DRAFT_SHAPE
        shape = self.amount.next()
        if not shape.levels:
            return NO_DRAFT_SHAPE
        levels = min(shape.levels, remaining - 1)
        nodes = shape.nodes if shape.branches > 1 else min(shape.nodes, levels)
        return replace(shape, levels=levels, nodes=nodes)

    def drafted(self) -> None:
        """A draft came and was fit to be verified."""
        self.failures = 0

    def failed(self) -> None:
        """None came, or an unfit one."""
        self.missed = True
        self.failures += 1
        self.rest = min(LONGEST_REST, 1 << (self.failures - 1))
