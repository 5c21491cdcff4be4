"""Find the keys that each row of a step attends to: those of the text before the row, and those on
the row's own path through a tree. The module is pure.

A key stays where it was stored when its token was fed, and each row lists the keys that it attends
to. The branches of a tree therefore need no masks and can be fed all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from tandem.engine.cache.pages import PAGE, page_aligned
from tandem.engine.forward.segment import PackedRows, Segment
from tandem.engine.forward.step_plan import StepPlan
from tandem.protos import tree

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of rows, in tensors of int64. Row i first attends to prefixes[i] keys, which lie in
    the pages from pages[tables[i]] on. A page has `page` slots. Row i then attends to the keys at
    slots[tails[i] : tails[i + 1]].
    """

    pages: torch.Tensor  # [pages of all sessions]
    tables: torch.Tensor  # [rows]
    prefixes: torch.Tensor  # [rows]
    tails: torch.Tensor  # [rows + 1]
    slots: torch.Tensor  # [keys of all tails]
    page: int

    @classmethod
    def straight(cls, context: int, rows: int) -> Paths:
        """Return the paths of consecutive rows that follow a context. All keys lie in order from
        slot 0 on.
        """
        pages = torch.arange(page_aligned(context + rows) // PAGE)
        prefixes = torch.arange(context + 1, context + rows + 1)
        nothing = torch.zeros(rows + 1, dtype=torch.long)
        return cls(pages, nothing[:rows], prefixes, nothing, nothing[:0], PAGE)


@dataclass(frozen=True, slots=True)
class PathPlan(StepPlan):
    """A step whose rows attend along paths. Such a step needs no padding."""

    paths: Paths


def path_plan(segments: Sequence[Segment]) -> PathPlan:
    """Lay out the segments of one step as paths."""
    pages, tables, prefixes = list[int](), list[int](), list[int]()
    tails, slots, page = [0], list[int](), PAGE
    for segment in segments:
        page = segment.table.page
        end = segment.context + len(segment.parents)
        nodes = segment.table.slots(segment.context, end)
        tables += [len(pages)] * len(segment.tokens)
        pages += segment.table.pages[: page_aligned(end, page) // page]
        for trunk, branch in _branches(segment)[segment.cached :]:
            prefixes.append(segment.context + trunk)
            slots += [nodes[node] for node in branch]
            tails.append(len(slots))
    numbers = (pages, tables, prefixes, tails, slots)
    joined = torch.tensor(list(chain.from_iterable(numbers)), dtype=torch.long)
    parts = joined.split([len(each) for each in numbers])
    paths = Paths(parts[0], parts[1], parts[2], parts[3], parts[4], page)
    return PathPlan.of(PackedRows.of(segments), CPU, lambda count: count, paths=paths)


def _branches(segment: Segment) -> list[tuple[int, list[int]]]:
    """Return two things for each node: how many nodes of the trunk its path begins with, and the
    other nodes on its path.
    """
    trunk = tree.trunk(segment.parents)
    found: list[tuple[int, list[int]]] = [(node + 1, []) for node in range(trunk)]
    for node, parent in enumerate(segment.parents[trunk:], trunk):
        begun, branch = found[parent] if parent >= 0 else (0, [])
        found.append((begun, [*branch, node]))
    return found
