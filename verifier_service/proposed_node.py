"""A proposed node, and the chances that sources of proposals claim for it. The module is pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class Source(IntEnum):
    """The sources of proposals."""

    DRAFTER = 0
    TEXT = 1  # tokens that followed the same tokens earlier in the text itself
    PREDICTION = 2  # tokens that the client predicts
    ANSWERS = 3  # tokens that followed the same tokens in recent answers
    GRAMMAR = 4  # the only tokens that the grammar allows


class Claim(NamedTuple):
    """A source's claim about a node: the chance that the node is accepted if its parent is
    accepted, and the logarithm of this chance after correction by the trust in the source.
    """

    chance: float
    gain: float


CERTAIN = Claim(0.0, 0.0)  # a claim with a corrected chance of 1, from which no trust is learned


class ProposedNode:
    """A proposed token. `position` is the number of tokens of the text up to and including this
    token. `claims` holds the sources' claims about the node. For each source, `claimed` is the sum
    of the chances that the source claims for the node's children. If this sum is above 1, the
    chances are scaled down. `checked` is set once the grammar is known to allow the node.
    """

    __slots__ = ("checked", "children", "claimed", "claims", "position", "token")

    def __init__(self, token: int, position: int) -> None:
        self.token = token
        self.position = position
        self.children: dict[int, ProposedNode] | None = None
        self.claims: dict[Source, Claim] = {}
        self.claimed: dict[Source, float] = {}
        self.checked = False

    def shares(self) -> Iterable[tuple[ProposedNode, float]]:
        """Return each child with the logarithm of its chance of being accepted if this node is
        accepted. If several sources propose a child, the highest of their corrected chances is
        used.
        """
        children = (self.children or {}).values()
        sharing = {source: math.log(max(1.0, sum_)) for source, sum_ in self.claimed.items()}
        if len(sharing) == 1:  # a shortcut for the usual case
            ((source, less),) = sharing.items()
            gains = [child.claims[source].gain - less for child in children]
        else:
            gains = [
                max(claim.gain - sharing[source] for source, claim in child.claims.items())
                for child in children
            ]
        if (sum_ := sum(map(math.exp, gains))) > 1:
            gains = [gain - math.log(sum_) for gain in gains]
        return zip(children, gains, strict=True)

    def claims_of(self, child: ProposedNode) -> dict[Source, float]:
        """Return the chance that each source claims for a child, scaled down if necessary."""
        return {
            source: claim.chance / max(1.0, self.claimed[source])
            for source, claim in child.claims.items()
        }
