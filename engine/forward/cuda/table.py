"""Lay out the rows of a step in a table, and split the table into passes. The module is pure: it
uses no model and no cache.
"""

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
    chunk_lengths,
)
from tandem.engine.forward.segment import PackedRows, Segment
from tandem.protos import tree

SIZES = (16, 32, 64, 128, 256, 512)  # allowed numbers of rows in a pass, padding included
FEW_OUTPUTS = 16  # rows with logits, padding included, if only some rows of a pass give logits
LANES = np.arange(TAIL)  # indices of the positions in a tail
TOKEN, POSITION, SLOT, SESSION, GIVES_LOGITS, NODE = range(6)  # the lines of `RowTable.rows`

Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowTable:
    """The rows of a step, and all nodes on side branches of the step's trees, including cached
    nodes.
    """

    rows: Array  # [6, rows]: one line per field, TOKEN to NODE; NODE is -1 for rows on a trunk
    nodes: Array  # [2, nodes]: slot and parent of each node; the parent is -1 if it is in a trunk
    pages: Array  # [sessions + 1, pages of the longest session]; the last line is for padding

    @classmethod
    def of(cls, segments: Sequence[Segment], layout: KVLayout) -> RowTable:
        """Return the table of all rows that the sessions feed, one session after the other."""
        packed = PackedRows.of(segments)
        gives_logits, nodes, sessions = [0] * len(packed.token_ids), list[int](), list[int]()
        for row in packed.logits_rows:
            gives_logits[row] = 1
        node_slots: list[int] = []
        node_parents: list[int] = []
        for session, segment in enumerate(segments):
            parents, trunk, total = (
                segment.parents,
                tree.trunk(segment.parents),
                len(segment.parents),
            )
            # node i of this segment has the index i + shift among all nodes on side branches
            shift = len(node_parents) - trunk
            numbers = [-1] * trunk + list(range(trunk + shift, total + shift))
            nodes += numbers[segment.cached :]
            sessions += [session] * len(segment.tokens)
            node_slots += segment.table.slots(segment.context + trunk, segment.context + total)
            node_parents += [numbers[parent] if parent >= 0 else -1 for parent in parents[trunk:]]
        rows = [packed.token_ids, packed.positions, packed.slots, sessions, gives_logits, nodes]
        tables = [segment.table.pages for segment in segments]
        pages = np.zeros((len(tables) + 1, max(map(len, tables), default=1)), np.int64)
        for own_pages, table in zip(pages, tables, strict=False):
            own_pages[: len(table)] = table
        pages[-1] = layout.padding // PAGE
        branches = np.array([node_slots, node_parents], np.int64)
        return cls(np.array(rows, np.int64), branches, pages)

    @property
    def num_logits(self) -> int:
        """The number of rows that give logits."""
        return int(self.rows[GIVES_LOGITS].sum())

    def part(self, start: int, size: int, padding_slot: int) -> RowTable:
        """Return `size` rows as a table, beginning with row `start`. If there are fewer rows,
        padding rows are added. The keys of padding rows are stored in `padding_slot`.
        """
        given = self.rows[:, start : start + size]
        count, padding_session = given.shape[1], len(self.pages) - 1
        rows = np.zeros((6, size), np.int64)
        rows[:, :count] = given
        rows[SLOT, count:] = padding_slot
        rows[SESSION, count:] = padding_session
        rows[NODE, count:] = -1
        return RowTable(rows, self.nodes, self.pages)


def row_plans(
    segments: Sequence[Segment], layout: KVLayout, exact: bool, sizes: Sequence[int] = SIZES
) -> list[RowPlan]:
    """Split a step into passes, whose arrays are stored on the CPU. The number of rows of each pass
    is one of `sizes`. A step without segments becomes one pass of padding rows. If `exact` is set,
    a pass gives the logits of all its rows or of none, because libraries choose matrix kernels by
    the number of rows.
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
    """Return for how many rows a pass computes logits, padding included."""
    size, count = table.rows.shape[1], table.num_logits
    return size if count > FEW_OUTPUTS or (exact and count) else FEW_OUTPUTS if count else 0


def padding_passes(layout: KVLayout, exact: bool, sizes: Sequence[int] = SIZES) -> list[RowPlan]:
    """Return a pass of padding rows for each form that passes can have, large forms first."""
    passes = []
    for size in sorted(sizes, reverse=True):
        for outputs in {0, size} if exact else {0, FEW_OUTPUTS, size}:
            table = RowTable.of((), layout).part(0, size, layout.padding)
            table.rows[GIVES_LOGITS, :outputs] = 1
            passes.append(rows_plan(table, layout, outputs))
    return passes


def prefix_lengths(positions: Array) -> Array:
    """Return each row's prefix length. It depends only on the row's position."""
    prefixes: Array = np.maximum(positions // STEP * STEP - REACH, 0)
    return prefixes


def rows_plan(table: RowTable, layout: KVLayout, outputs: int) -> RowPlan:
    """Return the pass that computes all rows of a table. `outputs` is the number of rows that give
    logits, padding included.
    """
    positions, logits_rows = table.rows[POSITION], table.rows[GIVES_LOGITS].nonzero()[0]
    size, count = len(positions), len(logits_rows)
    shape = PassShape(size, outputs)
    prefixes = prefix_lengths(positions)
    lengths = chunk_lengths(prefixes)
    # the arrays have the order and sizes of `PassShape.sizes`
    longs = np.zeros(sum(shape.sizes), np.int64)
    longs[: 3 * size] = table.rows[[TOKEN, POSITION, SLOT]].reshape(-1)
    longs[3 * size :][:count] = logits_rows
    longs[3 * size + outputs :] = _tails(table, prefixes).reshape(-1)
    records, pages = _chunks(table, prefixes, lengths, layout.block_rows)
    ints = np.empty(2 * size + HEADER + records.size + len(pages), np.int32)
    counts, reads = ints[: 2 * size], ints[2 * size :]  # laid out as in `RowPlan`
    counts[::2] = positions - prefixes + 1  # number of keys in each tail
    counts[1::2] = -(-prefixes // lengths)  # number of chunks in each prefix
    reads[0] = len(records)
    reads[HEADER:][: records.size] = records.reshape(-1)
    reads[HEADER + records.size :] = pages
    arrays = torch.from_numpy(longs), torch.from_numpy(ints)
    return RowPlan(shape, *arrays, count, shape.room(layout.width))


def _chunks(
    table: RowTable, prefixes: Array, lengths: Array, block_rows: int
) -> tuple[Array, Sequence[int]]:
    """Return the records of the chunks of all prefixes, [chunks, RECORD], in the format of
    `RowPlan.reads`, and the pages of all chunks.
    """
    sessions = table.rows[SESSION]
    firsts = _runs(sessions, prefixes, block_rows).tolist()
    chunks, pages = list[int](), list[int]()
    for first, last in zip(firsts, [*firsts[1:], len(prefixes)], strict=True):
        if prefix := int(prefixes[first]):
            start, size = len(pages), int(lengths[first])
            pages += table.pages[sessions[first], : -(-prefix // PAGE)].tolist()
            for number, low in enumerate(range(0, prefix, size)):
                high = min(low + size, prefix)
                chunks += (first, last, low, high, number, start + low // PAGE)
    records = np.array(chunks, np.int64).reshape(-1, RECORD)
    records[:, -1] += HEADER + records.size  # the pages come after the records
    return records, pages


def _runs(sessions: Array, prefixes: Array, block_rows: int) -> Array:
    """Return the index of the first row of each run. A run consists of at most `block_rows`
    consecutive rows that share a prefix.
    """
    every = np.arange(len(sessions))
    differs = np.ones(len(sessions), np.bool_)
    differs[1:] = (sessions[1:] != sessions[:-1]) | (prefixes[1:] != prefixes[:-1])
    began = np.maximum.accumulate(np.where(differs, every, 0))
    firsts: Array = (differs | ((every - began) % block_rows == 0)).nonzero()[0]
    return firsts


def _tails(table: RowTable, prefixes: Array) -> Array:
    """Return the slots of the keys in each row's tail, [rows, TAIL]. Entries after the last key of
    a tail are meaningless.

    Initially, each row gets the slots that it would have if the tokens formed a chain without
    branches. For each row on a side branch, the slots of the branch's nodes are then corrected,
    from the row's own node up to the trunk.
    """
    _, positions, _, sessions, _, row_nodes = table.rows
    seen = np.minimum(prefixes[:, None] + LANES, positions[:, None])  # positions, [rows, TAIL]
    numbers = seen // PAGE  # index of each page in its session
    tails: Array = (table.pages[sessions[:, None], numbers] - numbers) * PAGE + seen
    rows = (row_nodes >= 0).nonzero()[0]
    nodes, lane = row_nodes[rows], (positions - prefixes)[rows]
    while len(rows):  # each iteration moves from the nodes to their parents
        assert lane.min() >= 0, "a draft must not be deeper than a tail"
        tails[rows, lane], nodes = table.nodes[:, nodes]
        below = nodes >= 0
        rows, nodes, lane = rows[below], nodes[below], lane[below] - 1
    return tails
