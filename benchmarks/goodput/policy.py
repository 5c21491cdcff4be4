"""The drafting policies of a simulation: draft as much as is worthwhile, or always draft the same
shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tandem.protos.types import NO_DRAFT_SHAPE, DraftShape

LEVELS = {8: 6, 16: 8, 32: 10, 64: 12}  # maximum levels of a tree, by its number of nodes


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy for how much is drafted and verified. `shape` is the largest draft that is allowed.
    If the policy is `fixed`, every draft has this shape, and all proposals that have arrived are
    verified. With `lockstep`, each step of the verifier waits for a draft that continues the whole
    text so far.
    """

    name: str
    shape: DraftShape = DraftShape(levels=32, branches=4, nodes=64)  # noqa: RUF009
    fixed: bool = False
    lockstep: bool = False


PLAIN = Policy("plain", NO_DRAFT_SHAPE, fixed=True)
TANDEM = Policy("policy")


def families() -> Iterator[list[Policy]]:
    """Yield families of fixed draft shapes. The shapes of a family are ordered by size."""
    chains = {f"chain of {nodes}": DraftShape.chain(nodes) for nodes in (2, 4, 8)}
    trees = {f"tree of {nodes}": DraftShape(LEVELS[nodes], 4, nodes) for nodes in LEVELS}
    for shapes, lockstep in product((chains, trees), (False, True)):
        yield [
            Policy(name + ", lockstep" * lockstep, shape, True, lockstep)
            for name, shape in shapes.items()
        ]
