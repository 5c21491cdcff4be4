"""Which keys each row of a step sees: the text before it, and its own path through a tree. Pure.

Every key lies where it was put when its token was fed; rows look for theirs. So the branches of a
tree need no turns and no masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.cache.kv import Index, index
from engine.forward.segment import Packed, Segment
from protos import tree

LEAST = 4  # rows of a pass: PyTorch's own operations round differently for fewer
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Paths:
    """Row i sees prefixes[i] keys from the place starts[i] on, and then those at
    places[tails[i] : tails[i + 1]]. int64.
    """

    starts: torch.Tensor  # [rows]
    prefixes: torch.Tensor  # [rows]
    tails: torch.Tensor  # [rows + 1]
    places: torch.Tensor  # [keys of all tails]

    @classmethod
    def straight(cls, context: int, rows: int) -> Paths:
        """Those of rows in a line, from the place 0 on, behind a context."""
        prefixes = torch.arange(context + 1, context + rows + 1)
        nothing = torch.zeros(rows + 1, dtype=torch.long)
        return cls(nothing[:rows], prefixes, nothing, nothing[:0])


@dataclass(frozen=True, slots=True)
class PathPlan:
    """A step of several segments, packed; padding rows are never stored, nor do they see."""

    token_ids: torch.Tensor  # [1, rows]
    positions: torch.Tensor  # [1, rows]
    logits_rows: torch.Tensor  # [wanted rows of all, padded to LEAST]
    stored: Index  # places of the new keys, those of padding left out
    count: int  # rows, those of padding left out
    paths: Paths  # of so many rows


def lay_out(segments: Sequence[Segment]) -> PathPlan:
    """Lay out one step."""
    packed = Packed.of(segments)
    prefixes: list[int] = []
    tails, places = [0], list[int]()
    for segment in segments:
        first = segment.room.start + segment.context
        for trunk, branch in _branches(segment)[segment.cached :]:
            prefixes.append(segment.context + trunk)
            places += [first + node for node in branch]
            tails.append(len(places))
    count, wanted = len(packed.token_ids), packed.wanted
    padding, spare = max(0, LEAST - count), max(0, LEAST - len(wanted))

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long)

    return PathPlan(
        token_ids=tensor(packed.token_ids + packed.token_ids[:1] * padding)[None],
        positions=tensor(packed.positions + packed.positions[:1] * padding)[None],
        logits_rows=tensor(wanted + [0] * spare),
        stored=index(packed.places, CPU),
        count=count,
        paths=Paths(*map(tensor, (packed.starts, prefixes, tails, places))),
    )


def _branches(segment: Segment) -> list[tuple[int, list[int]]]:
    """Of each node: how many nodes of the trunk its path begins with, and the others on it."""
    trunk = tree.trunk(segment.parents)
    found: list[tuple[int, list[int]]] = [(node + 1, []) for node in range(trunk)]
    for node, parent in enumerate(segment.parents[trunk:], trunk):
        begun, branch = found[parent] if parent >= 0 else (0, [])
        found.append((begun, [*branch, node]))
    return found
