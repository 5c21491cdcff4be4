"""A step as a table of rows, cut into passes. Pure: no model, no cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.forward.cuda.rows import REACH, STEP, TAIL, WIDEST, PassShape, RowPlan
from tandem.engine.forward.segment import PackedRows, Segment
from tandem.protos import tree

SIZES = (16, 32, 64, 128, 256, 512)  # rows of a pass, padding included
FEW = 16  # rows that give logits, where not all do

Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows, and all nodes on side branches, cached ones too, by what is known of them."""

    rows: Array  # [6, rows]: token, position, place, start of the KV range, wanted, node or -1
    nodes: Array  # [2, nodes]: place, and the node that it hangs below, or -1 below a trunk

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> RowTable:
        """What all sessions feed, one after the other."""
        packed = PackedRows.of(segments)
        wanted, numbers = [0] * len(packed.token_ids), list[int]()
        for row in packed.wanted:
            wanted[row] = 1
        places: list[int] = []
        above: list[int] = []
        for segment in segments:
            parents, trunk, total = (
                segment.parents,
                tree.trunk(segment.parents),
                len(segment.parents),
            )
            first = segment.kv_range.start + segment.context  # node i is stored at first + i
            shift = len(above) - trunk  # and is node i + shift of all on side branches
            own = [-1] * trunk + list(range(trunk + shift, total + shift))
            numbers += own[segment.cached :]
            places += range(first + trunk, first + total)
            above += [own[parent] if parent >= 0 else -1 for parent in parents[trunk:]]
        rows = [packed.token_ids, packed.positions, packed.slots, packed.starts, wanted, numbers]
        return cls(np.array(rows, np.int64), np.array([places, above], np.int64))

    def part(self, start: int, size: int, padding_slot: int) -> RowTable:
        """`size` rows; the keys of padding rows go to `padding_slot`."""
        given = self.rows[:, start : start + size]
        rows = np.empty((6, size), np.int64)
        rows[:, : given.shape[1]] = given
        rows[:, given.shape[1] :] = [[0], [0], [padding_slot], [padding_slot], [0], [-1]]
        return RowTable(rows, self.nodes)


def row_plans(
    segments: Sequence[Segment], padding_slot: int, exact: bool, sizes: Sequence[int] = SIZES
) -> list[RowPlan]:
    """The passes of a step, on the CPU, each of one of `sizes` rows; without segments, one of
    padding. If exact, a pass gives the logits of all its rows or of none: how many there are is
    something that matrix kernels go by.
    """
    table, most = RowTable.of(segments), sizes[-1]
    total = table.rows.shape[1]
    passes = []
    for start in range(0, max(total, 1), most):
        size = next(size for size in sizes if size >= min(total - start, most))
        passes.append(_rows(table.part(start, size, padding_slot), exact))
    return passes


def padding_passes(padding_slot: int, exact: bool, sizes: Sequence[int] = SIZES) -> list[RowPlan]:
    """A pass of padding of every form that a step can be cut into, large ones first."""
    passes = []
    for size in sorted(sizes, reverse=True):
        for outputs, branched in product({0, size} if exact else {0, FEW, size}, (False, True)):
            nothing = np.empty((6, 0), np.int64)
            table = RowTable(nothing, np.array([[padding_slot], [-1]])).part(0, size, padding_slot)
            table.rows[4, :outputs] = 1
            table.rows[5, 0] = int(branched) - 1  # the only node, or none
            passes.append(_rows(table, exact))
    return passes


def prefix_lengths(positions: Array) -> Array:
    """How many positions the prefix of a row has, by the row's position."""
    cut: Array = np.maximum(positions // STEP * STEP - REACH, 0)
    return cut


def _rows(table: RowTable, exact: bool) -> RowPlan:
    """The arrays of one pass."""
    _, positions, _, starts, wanted, nodes = table.rows
    size, count, branched = len(wanted), int(wanted.sum()), bool((nodes >= 0).any())
    outputs = size if count > FEW or (exact and count) else FEW if count else 0
    shape = PassShape(size, outputs, branched)
    cut = prefix_lengths(positions)
    firsts = _runs(starts, cut)
    runs = len(firsts)
    spans = np.zeros((6, size + 1), np.int32)
    spans[0] = size
    spans[0, :runs], spans[1, :runs], spans[2, :runs] = firsts, starts[firsts], cut[firsts]
    spans[3] = np.arange(size + 1)
    spans[4, :-1] = TAIL * spans[3, :-1] if branched else starts + cut
    spans[5, :-1] = positions - cut + 1
    longs = np.zeros(sum(shape.sizes), np.int64)
    longs[: 3 * size] = table.rows[:3].ravel()
    longs[3 * size :][:count] = wanted.nonzero()[0]
    if branched:
        longs[3 * size + outputs :] = _tails(table, cut).ravel()
    return RowPlan(shape, torch.from_numpy(longs), torch.from_numpy(spans), count)


def _runs(starts: Array, cut: Array) -> Array:
    """The first rows of runs that share a prefix."""
    every = np.arange(len(starts))
    differs = np.ones(len(starts), np.bool_)
    differs[1:] = (starts[1:] != starts[:-1]) | (cut[1:] != cut[:-1])
    began = np.maximum.accumulate(np.where(differs, every, 0))
    firsts: Array = (differs | ((every - began) % WIDEST == 0)).nonzero()[0]
    return firsts


def _tails(table: RowTable, cut: Array) -> Array:
    """The places of the keys of each row's tail, and after them any: [rows, TAIL]."""
    _, positions, _, starts, _, numbers = table.rows
    lanes = np.minimum(cut[:, None] + np.arange(TAIL), positions[:, None])
    tails: Array = starts[:, None] + lanes
    rows = (numbers >= 0).nonzero()[0]
    nodes, lane = numbers[rows], (positions - cut)[rows]
    while len(rows):  # from node to node, up to the trunk
        assert lane.min() >= 0, "a draft is no deeper than a tail reaches"
        tails[rows, lane], nodes = table.nodes[:, nodes]
        below = nodes >= 0
        rows, nodes, lane = rows[below], nodes[below], lane[below] - 1
    return tails
