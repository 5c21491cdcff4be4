"""A proposed token in a growing tree, and the tokens that may follow a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.protos.types import Distribution


class Child(NamedTuple):
    """A token that may follow a node. `logprob` is the log-probability that the token is accepted
    if the node is accepted; `probability` is the probability that the draft model gives the token.
    """

    token: int
    logprob: float
    probability: float = 1.0


@dataclass(frozen=True, slots=True)
class Expansion:
    """A node's children, and the distribution that they were drawn from, if any. The likeliest
    child comes first or, if the children were drawn, the child that was drawn first.
    """

    children: Sequence[Child]
    drawn: Distribution | None = None


@dataclass(slots=True, eq=False)
class DraftNode:
    """A proposed token. `position` is the number of tokens of the text up to and including this
    one. `slot` is the index of the node's keys in the session's cache, where 0 is the first slot
    after the root. `slot` is None until the node is fed. The root's slot is -1. `number` identifies
    the node in proposals, and is 0 until the node is sent.
    """

    token: int
    parent: DraftNode | None
    position: int
    score: float = 0.0
    logprob: float = 0.0
    confident: bool = True
    number: int = 0
    slot: int | None = None
    children: dict[int, DraftNode] = field(default_factory=dict)
    drawn: Distribution | None = None
