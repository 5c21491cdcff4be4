"""Simulated texts, and the drafter's proposals for them. A token is the rank that the drafter gives
it.

The children that the drafter proposes for a node depend only on the node's position. Some positions
are easy to guess, and others are hard. The next token of the text is drawn with the true chances of
the children.
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
UNFORESEEN = BRANCHES  # the token that no proposal has
PERIOD = 4096  # positions after which a text begins again
REST = 0.5  # the next child's share of the chance that is left


@dataclass(frozen=True, slots=True)
class SimulatedText:
    """A text without end, and the drafter's proposals at each of its positions."""

    tokens: Sequence[int]
    proposals: Sequence[Expansion]
    offset: int = 0

    def token(self, position: int) -> int:
        """Return the text's token at a position."""
        return self.tokens[(self.offset + position) % PERIOD]

    def children(self, positions: Sequence[int]) -> list[Expansion]:
        """Return the drafter's proposals at positions."""
        return [self.proposals[(self.offset + position) % PERIOD] for position in positions]


@lru_cache(maxsize=16)
def text_of(skill: Skill, seed: int) -> SimulatedText:
    """Make a text, and the proposals of a drafter of this skill for it."""
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
    """Return the chances of all children, likeliest first. `first` is that of the first child."""
    left = 1 - first
    others = [min(first, left * REST ** (rank + 1)) for rank in range(BRANCHES - 1)]
    return [first, *others]
