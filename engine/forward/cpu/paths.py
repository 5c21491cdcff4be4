"""Which keys each row of a step sees: the text before it, and its own path through a tree. Pure.

Every key lies where it was put when its token was fed; rows look for theirs. So the branches of a
tree need no turns and no masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tandem.engine.forward.segment import PackedRows, Segment
from tandem.engine.forward.step_plan import StepPlan
from tandem.protos import tree

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Paths:
    """Row i sees prefixes[i] keys from the place starts[i] on, and then those at
    slots[tails[i] : tails[i + 1]]. int64.
    """

    starts: torch.Tensor  # [rows]
    prefixes: torch.Tensor  # [rows]
    tails: torch.Tensor  # [rows + 1]
    slots: torch.Tensor  # [keys of all tails]

    @classmethod
    def straight(cls, context: int, rows: int) -> Paths:
        """Those of rows in a line, from the place 0 on, after a context."""
        prefixes = torch.arange(context + 1, context + rows + 1)
        nothing = torch.zeros(rows + 1, dtype=torch.long)
        return cls(nothing[:rows], prefixes, nothing, nothing[:0])


@dataclass(frozen=True, slots=True)
class PathPlan(StepPlan):
    """A step whose rows attend along paths. It needs no padding."""

    paths: Paths


def path_plan(segments: Sequence[Segment]) -> PathPlan:
    """Lay out one step."""
    packed = PackedRows.of(segments)
    prefixes: list[int] = []
    tails, slots = [0], list[int]()
    for segment in segments:
        first = segment.kv_range.start + segment.context
        for trunk, branch in _branches(segment)[segment.cached :]:
            prefixes.append(segment.context + trunk)
            slots += [first + node for node in branch]
            tails.append(len(slots))
    paths = (
        torch.tensor(each, dtype=torch.long) for each in (packed.starts, prefixes, tails, slots)
    )
    return PathPlan.of(packed, CPU, lambda count: count, paths=Paths(*paths))


def _branches(segment: Segment) -> list[tuple[int, list[int]]]:
    """Of each node: how many nodes of the trunk its path begins with, and the others on it."""
    trunk = tree.trunk(segment.parents)
    found: list[tuple[int, list[int]]] = [(node + 1, []) for node in range(trunk)]
    for node, parent in enumerate(segment.parents[trunk:], trunk):
        begun, branch = found[parent] if parent >= 0 else (0, [])
        found.append((begun, [*branch, node]))
    return found
