"""A guessed token in a growing tree, and what may follow one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.protos.types import Distribution


class Child(NamedTuple):
    """A token that may follow, the log-probability that it is accepted if what precedes it is, and
    its probability by the draft model.
    """

    token: int
    gain: float
    probability: float = 1.0


@dataclass(frozen=True, slots=True)
class Expansion:
    """Children, likeliest or first drawn first, and what they were drawn from if they were."""

    children: Sequence[Child]
    drawn: Distribution | None = None


@dataclass(slots=True, eq=False)
class DraftNode:
    """A guessed token. `position` is the tokens of the text up to and with it; `place` is where its
    keys lie after the root once it was fed, and the root's own is -1. Its `number` is 0 until it
    is sent.
    """

    token: int
    parent: DraftNode | None
    position: int
    score: float = 0.0
    gain: float = 0.0
    sure: bool = True
    number: int = 0
    place: int | None = None
    children: dict[int, DraftNode] = field(default_factory=dict)
    drawn: Distribution | None = None
