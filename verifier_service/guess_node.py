"""A guessed node, and what each source of guesses claims of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class Source(IntEnum):
    """Who guesses."""

    DRAFTER = 0
    TEXT = 1  # what followed in the text itself
    PREDICTION = 2  # what the client expects
    ANSWERS = 3  # what followed in recent answers
    GRAMMAR = 4  # which leaves no choice


class Claim(NamedTuple):
    """What a source claims of a node: the chance that it is accepted if its parent is, and with how
    much of that it is trusted, as a logarithm.
    """

    chance: float
    gain: float


CERTAIN = Claim(0.0, 0.0)  # claimed by nobody, and true


class GuessNode:
    """A token at a place of the text, `position` tokens with it. What its sources claim of it, and
    the sum of what each claims of its children: what is above 1, they share. It is `checked` once
    it is known to be possible by the grammar.
    """

    __slots__ = ("checked", "children", "claimed", "claims", "position", "token")

    def __init__(self, token: int, position: int) -> None:
        self.token, self.position = token, position
        self.children: dict[int, GuessNode] | None = None
        self.claims: dict[Source, Claim] = {}
        self.claimed: dict[Source, float] = {}
        self.checked = False

    def shares(self) -> Iterable[tuple[GuessNode, float]]:
        """The children, and the logarithm of each one's chance if this one is accepted: what the
        source that is surest of it says.
        """
        children = (self.children or {}).values()
        sharing = {source: math.log(max(1.0, sum_)) for source, sum_ in self.claimed.items()}
        if len(sharing) == 1:  # usual, and quick
            ((source, less),) = sharing.items()
            return [(child, child.claims[source].gain - less) for child in children]
        gains = [
            max(claim.gain - sharing[source] for source, claim in child.claims.items())
            for child in children
        ]
        excess = math.log(max(1.0, sum(map(math.exp, gains))))
        return ((child, gain - excess) for child, gain in zip(children, gains, strict=True))

    def claims_of(self, child: GuessNode) -> dict[Source, float]:
        """What each source claims of a child."""
        return {
            source: claim.chance / max(1.0, self.claimed[source])
            for source, claim in child.claims.items()
        }
