"""Simulated texts, and the drafter's proposals for them. A simulated token is represented by its
rank among the drafter's proposals.

The children that the drafter proposes for a node depend only on the node's position. Some positions
are easy to predict, and others are hard. The next token of the text is sampled with the true
probabilities of the children.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tandem.benchmarks.goodput.world import LOST, Skill
from tandem.drafter_service.tree.node import Child, Expansion

BRANCHES = 4
UNFORESEEN = BRANCHES  # a token that is never proposed
PERIOD = 4096  # number of positions after which a text repeats
REST = 0.5  # each further child gets this share of the remaining probability


@dataclass(frozen=True, slots=True)
class SimulatedText:
    """An infinite text, and the drafter's proposals at each of its positions."""

    tokens: Sequence[int]
    proposals: Sequence[Expansion]
    offset: int = 0

    def token(self, position: int) -> int:
        """Return the text's token at a position."""
        return self.tokens[(self.offset + position) % PERIOD]

    def children(self, positions: Sequence[int]) -> list[Expansion]:
        """Return the drafter's proposals at each of the given positions."""
        return [self.proposals[(self.offset + position) % PERIOD] for position in positions]


@lru_cache(maxsize=16)
def text_of(skill: Skill, seed: int) -> SimulatedText:
    """Make a text, and the proposals that a drafter with the given skill makes for it."""
    rng = random.Random(seed)
    tokens: list[int] = []
    proposals: list[Expansion] = []
    for position in range(PERIOD):
        claimed = chances(min(0.995, rng.betavariate(skill.alpha, skill.beta)))
        lost = skill.alternate and (position // skill.alternate) % 2
        honesty = LOST if lost else skill.honesty
        true = [chance * min(honesty, 0.98 / sum(claimed)) for chance in claimed]
        weights = [*true, max(0.0, 1 - sum(true))]
        tokens += rng.choices(range(UNFORESEEN + 1), weights)
        children = (Child(rank, math.log(chance)) for rank, chance in enumerate(claimed))
        proposals.append(Expansion(tuple(children)))
    return SimulatedText(tokens, proposals)


def chances(first: float) -> list[float]:
    """Return the probabilities of all children, likeliest first. `first` is the probability of the
    first child.
    """
    left = 1 - first
    others = [min(first, left * REST ** (rank + 1)) for rank in range(BRANCHES - 1)]
    return [first, *others]
