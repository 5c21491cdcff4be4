"""Find the keys that each row of a step attends to: the keys of the cached tokens before the tree,
and the keys on the row's own path through the tree. All functions of this module are pure.

No key is moved or copied to compute attention: each row lists the slots of the keys that it attends
to. The branches of a tree therefore need no mask and can all be fed in the same step.
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
    """The keys that each row attends to, as int64 tensors. Row i attends to a prefix of prefixes[i]
    keys, and to the keys in slots[tails[i] : tails[i + 1]]. The pages of the prefix begin at
    pages[tables[i]]. A page has `page` slots.
    """

    pages: torch.Tensor  # [pages of all sessions]
    tables: torch.Tensor  # [rows]
    prefixes: torch.Tensor  # [rows]
    tails: torch.Tensor  # [rows + 1]
    slots: torch.Tensor  # [keys of all tails]
    page: int

    @classmethod
    def straight(cls, context: int, rows: int) -> Paths:
        """Return the paths of `rows` consecutive tokens that follow `context` cached tokens. The
        keys of all these tokens are stored in consecutive slots, beginning at slot 0.
        """
        pages = torch.arange(page_aligned(context + rows) // PAGE)
        prefixes = torch.arange(context + 1, context + rows + 1)
        nothing = torch.zeros(rows + 1, dtype=torch.long)
        return cls(pages, nothing[:rows], prefixes, nothing, nothing[:0], PAGE)


@dataclass(frozen=True, slots=True)
class PathPlan(StepPlan):
    """The plan of a step in which each row attends to the keys on its path. A path plan has no
    padding rows.
    """

    paths: Paths


def path_plan(segments: Sequence[Segment]) -> PathPlan:
    """Return the path plan of a step that feeds the given segments."""
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
    """Return for each tree node how many trunk nodes are on its path, and which other nodes are on
    its path. The trunk is the chain that the tree's first nodes form.
    """
    trunk = tree.trunk(segment.parents)
    found: list[tuple[int, list[int]]] = [(node + 1, []) for node in range(trunk)]
    for node, parent in enumerate(segment.parents[trunk:], trunk):
        begun, branch = found[parent] if parent >= 0 else (0, [])
        found.append((begun, [*branch, node]))
    return found
