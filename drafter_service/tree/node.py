"""A proposed token in a growing tree, and the tokens that may follow a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.protos.types import Distribution


class Child(NamedTuple):
    """A token that may follow a node. `logprob` is the log-probability that the token is accepted
    if the node is; `probability` is the draft model's.
    """

    token: int
    logprob: float
    probability: float = 1.0


@dataclass(frozen=True, slots=True)
class Expansion:
    """A node's children, likeliest or first drawn first, and the distribution that they were drawn
    from, if any.
    """

    children: Sequence[Child]
    drawn: Distribution | None = None


@dataclass(slots=True, eq=False)
class DraftNode:
    """A proposed token. `position` counts the tokens of the text up to and including this one.
    `slot` is the position of the node's keys in the session's cache after the root, once the node
    was fed; the root's slot is -1. `number` is 0 until the node is sent.
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
