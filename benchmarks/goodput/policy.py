"""How much is drafted in a simulation: as much as pays, or always the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tandem.protos.types import NO_DRAFT_SHAPE, DraftShape

LEVELS = {8: 6, 16: 8, 32: 10, 64: 12}  # of trees, by their nodes


@dataclass(frozen=True, slots=True)
class Policy:
    """What is drafted ahead at most, or always, if it is `fixed`: then all of it is verified that
    has arrived or, in `lockstep`, what was guessed after exactly the text.
    """

    name: str
    shape: DraftShape = DraftShape(levels=32, branches=4, nodes=64)  # noqa: RUF009
    fixed: bool = False
    lockstep: bool = False


PLAIN = Policy("plain", NO_DRAFT_SHAPE, fixed=True)
TANDEM = Policy("policy")


def families() -> Iterator[list[Policy]]:
    """Fixed shapes, those of a family in the order of their size."""
    chains = {f"chain of {nodes}": DraftShape.chain(nodes) for nodes in (2, 4, 8)}
    trees = {f"tree of {nodes}": DraftShape(LEVELS[nodes], 4, nodes) for nodes in LEVELS}
    for shapes, lockstep in product((chains, trees), (False, True)):
        yield [
            Policy(name + ", lockstep" * lockstep, shape, True, lockstep)
            for name, shape in shapes.items()
        ]
