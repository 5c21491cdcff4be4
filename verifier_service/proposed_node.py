"""A proposed node, and the chances that sources of proposals claim for it. The module is pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class Source(IntEnum):
    """The sources of proposals."""

    DRAFTER = 0
    TEXT = 1  # tokens that followed before in the text itself
    PREDICTION = 2  # tokens that the client expects
    ANSWERS = 3  # tokens that followed in recent answers
    GRAMMAR = 4  # the only tokens that the grammar allows


class Claim(NamedTuple):
    """A source's claim about a node: the chance that the node is accepted if its parent is, and the
    logarithm of that chance, corrected by the trust in the source.
    """

    chance: float
    gain: float


CERTAIN = Claim(0.0, 0.0)  # a claim that teaches nothing about a source; its corrected chance is 1


class ProposedNode:
    """A proposed token, which would be the text's token number `position`. `claims` has the
    sources' claims about the node. For each source, `claimed` is the sum of the chances that the
    source claims for the children. If the sum is above 1, these chances are scaled down. The node
    is `checked` once the grammar is known to allow it.
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
        """Return each child with the logarithm of the chance that it is accepted if this node is.
        The chance is that of the source that is surest of the child.
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
        """Return the chance that each source claims for a child."""
        return {
            source: claim.chance / max(1.0, self.claimed[source])
            for source, claim in child.claims.items()
        }
