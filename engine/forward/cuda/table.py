"""A step as a table of rows, which is cut into passes. Pure: no model, no cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.cache.pages import PAGE
from tandem.engine.forward.cuda.rows import (
    HEADER,
    REACH,
    RECORD,
    STEP,
    TAIL,
    KVLayout,
    PassShape,
    RowPlan,
    piece_lengths,
)
from tandem.engine.forward.segment import PackedRows, Segment
from tandem.protos import tree

SIZES = (16, 32, 64, 128, 256, 512)  # rows of a pass, padding included
FEW = 16  # rows that give logits in a pass where not all rows do
LANES = np.arange(TAIL)

Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowTable:
    """The rows of a step, and all nodes on side branches of its trees, cached nodes too."""

    rows: Array  # [6, rows]: token, position, slot, session, wanted, node or -1
    nodes: Array  # [2, nodes]: slot, and the parent node, or -1 if the parent is in a trunk
    pages: Array  # [sessions + 1, pages of the longest]; the last entry is for padding

    @classmethod
    def of(cls, segments: Sequence[Segment], layout: KVLayout) -> RowTable:
        """Return the table of the rows that all sessions feed, one session after the other."""
        packed = PackedRows.of(segments)
        wanted, numbers, sessions = [0] * len(packed.token_ids), list[int](), list[int]()
        for row in packed.wanted:
            wanted[row] = 1
        slots: list[int] = []
        above: list[int] = []
        for session, segment in enumerate(segments):
            parents, trunk, total = (
                segment.parents,
                tree.trunk(segment.parents),
                len(segment.parents),
            )
            shift = len(above) - trunk  # node i is node i + shift of all on side branches
            own = [-1] * trunk + list(range(trunk + shift, total + shift))
            numbers += own[segment.cached :]
            sessions += [session] * len(segment.tokens)
            slots += segment.table.slots(segment.context + trunk, segment.context + total)
            above += [own[parent] if parent >= 0 else -1 for parent in parents[trunk:]]
        rows = [packed.token_ids, packed.positions, packed.slots, sessions, wanted, numbers]
        tables = [segment.table.pages for segment in segments]
        pages = np.zeros((len(tables) + 1, max(map(len, tables), default=1)), np.int64)
        for own_pages, table in zip(pages, tables, strict=False):
            own_pages[: len(table)] = table
        pages[-1] = layout.padding // PAGE
        return cls(np.array(rows, np.int64), np.array([slots, above], np.int64), pages)

    def part(self, start: int, size: int, padding_slot: int) -> RowTable:
        """Return `size` rows from row `start` on, filled up with padding rows. The keys of padding
        rows go to `padding_slot`.
        """
        given = self.rows[:, start : start + size]
        rows = np.empty((6, size), np.int64)
        rows[:, : given.shape[1]] = given
        nobody = len(self.pages) - 1
        rows[:, given.shape[1] :] = [[0], [0], [padding_slot], [nobody], [0], [-1]]
        return RowTable(rows, self.nodes, self.pages)


def row_plans(
    segments: Sequence[Segment], layout: KVLayout, exact: bool, sizes: Sequence[int] = SIZES
) -> list[RowPlan]:
    """Return the passes of a step, on the CPU, each of one of `sizes` rows. Without segments there
    is one pass of padding. If exact, a pass gives the logits of all its rows or of none, since the
    choice of matrix kernels depends on the number of rows.
    """
    table, most = RowTable.of(segments, layout), sizes[-1]
    total = table.rows.shape[1]
    passes = []
    for start in range(0, max(total, 1), most):
        size = next(size for size in sizes if size >= min(total - start, most))
        part = table.part(start, size, layout.padding)
        passes.append(rows_plan(part, layout, _outputs(part, exact)))
    return passes


def _outputs(table: RowTable, exact: bool) -> int:
    """Return how many rows of a pass give logits, padding included."""
    size, count = len(table.rows[4]), int(table.rows[4].sum())
    return size if count > FEW or (exact and count) else FEW if count else 0


def padding_passes(layout: KVLayout, exact: bool, sizes: Sequence[int] = SIZES) -> list[RowPlan]:
    """Return a pass of padding of every form that a step can be cut into, large forms first."""
    passes = []
    for size in sorted(sizes, reverse=True):
        for outputs in {0, size} if exact else {0, FEW, size}:
            table = RowTable.of((), layout).part(0, size, layout.padding)
            table.rows[4, :outputs] = 1
            passes.append(rows_plan(table, layout, outputs))
    return passes


def prefix_lengths(positions: Array) -> Array:
    """Return how many positions the prefix of a row has, by the row's position."""
    cut: Array = np.maximum(positions // STEP * STEP - REACH, 0)
    return cut


def rows_plan(table: RowTable, layout: KVLayout, outputs: int) -> RowPlan:
    """Return the pass of all rows of a table. `outputs` rows give logits, padding included."""
    positions, wanted = table.rows[1], table.rows[4].nonzero()[0]
    size, count = len(positions), len(wanted)
    shape = PassShape(size, outputs)
    cut = prefix_lengths(positions)
    length = piece_lengths(cut)
    longs = np.zeros(sum(shape.sizes), np.int64)
    longs[: 3 * size] = table.rows[:3].reshape(-1)
    longs[3 * size :][:count] = wanted
    longs[3 * size + outputs :] = _tails(table, cut).reshape(-1)
    records, pages = _pieces(table, cut, length, layout.together)
    ints = np.empty(2 * size + HEADER + records.size + len(pages), np.int32)
    ints[: 2 * size : 2], ints[1 : 2 * size : 2] = positions - cut + 1, -(-cut // length)
    ints[2 * size] = len(records)
    ints[2 * size + HEADER :][: records.size] = records.reshape(-1)
    ints[2 * size + HEADER + records.size :] = pages
    arrays = torch.from_numpy(longs), torch.from_numpy(ints)
    return RowPlan(shape, *arrays, count, shape.room(layout.width))


def _pieces(
    table: RowTable, cut: Array, length: Array, together: int
) -> tuple[Array, Sequence[int]]:
    """Return the pieces of all prefixes, [pieces, RECORD], as `RowPlan.reads` has them, and the
    pages of all pieces.
    """
    sessions = table.rows[3]
    firsts = _runs(sessions, cut, together).tolist()
    pieces, pages = list[int](), list[int]()
    for first, last in zip(firsts, [*firsts[1:], len(cut)], strict=True):
        if prefix := int(cut[first]):
            start, size = len(pages), int(length[first])
            pages += table.pages[sessions[first], : -(-prefix // PAGE)].tolist()
            for number, low in enumerate(range(0, prefix, size)):
                high = min(low + size, prefix)
                pieces += (first, last, low, high, number, start + low // PAGE)
    records = np.array(pieces, np.int64).reshape(-1, RECORD)
    records[:, -1] += HEADER + records.size  # the pages come after the records
    return records, pages


def _runs(sessions: Array, cut: Array, together: int) -> Array:
    """Return the first row of each run. The rows of a run share a prefix, and are at most as many
    as attend together.
    """
    every = np.arange(len(sessions))
    differs = np.ones(len(sessions), np.bool_)
    differs[1:] = (sessions[1:] != sessions[:-1]) | (cut[1:] != cut[:-1])
    began = np.maximum.accumulate(np.where(differs, every, 0))
    firsts: Array = (differs | ((every - began) % together == 0)).nonzero()[0]
    return firsts


def _tails(table: RowTable, cut: Array) -> Array:
    """Return the slots of the keys of each row's tail, and any slots after them: [rows, TAIL]."""
    _, positions, _, sessions, _, numbers = table.rows
    lanes = np.minimum(cut[:, None] + LANES, positions[:, None])
    numbered = lanes // PAGE
    tails: Array = (table.pages[sessions[:, None], numbered] - numbered) * PAGE + lanes
    rows = (numbers >= 0).nonzero()[0]
    nodes, lane = numbers[rows], (positions - cut)[rows]
    while len(rows):  # from node to node, up to the trunk
        assert lane.min() >= 0, "a draft is no deeper than a tail reaches"
        tails[rows, lane], nodes = table.nodes[:, nodes]
        below = nodes >= 0
        rows, nodes, lane = rows[below], nodes[below], lane[below] - 1
    return tails
