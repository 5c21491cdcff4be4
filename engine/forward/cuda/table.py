"""A step as a table of rows, cut into passes. Pure: no model, no cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from engine.forward.cuda.rows import REACH, STEP, TAIL, WIDEST, Form, Rows
from engine.forward.segment import Packed, Segment
from protos import tree

SIZES = (16, 32, 64, 128, 256, 512)  # rows of a pass, padding included
FEW = 16  # rows that give logits, where not all do

Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, and all nodes on side branches, cached ones too, by what is known of them."""

    rows: Array  # [6, rows]: token, position, place, start of the room, wanted, node or -1
    nodes: Array  # [2, nodes]: place, and the node that it hangs below, or -1 below a trunk

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Table:
        """What all sessions feed, one after the other."""
        packed = Packed.of(segments)
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
            first = segment.room.start + segment.context  # node i is stored at first + i
            shift = len(above) - trunk  # and is node i + shift of all on side branches
            own = [-1] * trunk + list(range(trunk + shift, total + shift))
            numbers += own[segment.cached :]
            places += range(first + trunk, first + total)
            above += [own[parent] if parent >= 0 else -1 for parent in parents[trunk:]]
        rows = [packed.token_ids, packed.positions, packed.places, packed.starts, wanted, numbers]
        return cls(np.array(rows, np.int64), np.array([places, above], np.int64))

    def part(self, start: int, size: int, spare: int) -> Table:
        """`size` rows; those that nobody asked for have their keys go to the place `spare`."""
        given = self.rows[:, start : start + size]
        rows = np.empty((6, size), np.int64)
        rows[:, : given.shape[1]] = given
        rows[:, given.shape[1] :] = [[0], [0], [spare], [spare], [0], [-1]]
        return Table(rows, self.nodes)


def lay_out(
    segments: Sequence[Segment], spare: int, exact: bool, sizes: Sequence[int] = SIZES
) -> list[Rows]:
    """The passes of a step, on the CPU, each of one of `sizes` rows; without segments, one of
    padding. If exact, a pass gives the logits of all its rows or of none: how many there are is
    something that matrix kernels go by.
    """
    table, most = Table.of(segments), sizes[-1]
    total = table.rows.shape[1]
    passes = []
    for start in range(0, max(total, 1), most):
        size = next(size for size in sizes if size >= min(total - start, most))
        passes.append(_rows(table.part(start, size, spare), exact))
    return passes


def blanks(spare: int, exact: bool, sizes: Sequence[int] = SIZES) -> list[Rows]:
    """A pass of padding of every form that a step can be cut into, large ones first."""
    passes = []
    for size in sorted(sizes, reverse=True):
        for kept, branched in product({0, size} if exact else {0, FEW, size}, (False, True)):
            nothing = np.empty((6, 0), np.int64)
            table = Table(nothing, np.array([[spare], [-1]])).part(0, size, spare)
            table.rows[4, :kept] = 1
            table.rows[5, 0] = int(branched) - 1  # the only node, or none
            passes.append(_rows(table, exact))
    return passes


def prefix(positions: Array) -> Array:
    """How many positions the prefix of a row has, by the row's position."""
    cut: Array = np.maximum(positions // STEP * STEP - REACH, 0)
    return cut


def _rows(table: Table, exact: bool) -> Rows:
    """The arrays of one pass."""
    _, positions, _, rooms, wanted, nodes = table.rows
    size, count, branched = len(wanted), int(wanted.sum()), bool((nodes >= 0).any())
    kept = size if count > FEW or (exact and count) else FEW if count else 0
    form = Form(size, kept, branched)
    cut = prefix(positions)
    firsts = _runs(rooms, cut)
    runs = len(firsts)
    spans = np.zeros((6, size + 1), np.int32)
    spans[0] = size
    spans[0, :runs], spans[1, :runs], spans[2, :runs] = firsts, rooms[firsts], cut[firsts]
    spans[3] = np.arange(size + 1)
    spans[4, :-1] = TAIL * spans[3, :-1] if branched else rooms + cut
    spans[5, :-1] = positions - cut + 1
    longs = np.zeros(sum(form.sizes), np.int64)
    longs[: 3 * size] = table.rows[:3].ravel()
    longs[3 * size :][:count] = wanted.nonzero()[0]
    if branched:
        longs[3 * size + kept :] = _tails(table, cut).ravel()
    return Rows(form, torch.from_numpy(longs), torch.from_numpy(spans), count)


def _runs(rooms: Array, cut: Array) -> Array:
    """The first rows of runs that share a prefix."""
    every = np.arange(len(rooms))
    differs = np.ones(len(rooms), np.bool_)
    differs[1:] = (rooms[1:] != rooms[:-1]) | (cut[1:] != cut[:-1])
    began = np.maximum.accumulate(np.where(differs, every, 0))
    firsts: Array = (differs | ((every - began) % WIDEST == 0)).nonzero()[0]
    return firsts


def _tails(table: Table, cut: Array) -> Array:
    """The places of the keys of each row's tail, and behind them any: [rows, TAIL]."""
    _, positions, _, rooms, _, numbers = table.rows
    lanes = np.minimum(cut[:, None] + np.arange(TAIL), positions[:, None])
    tails: Array = rooms[:, None] + lanes
    rows = (numbers >= 0).nonzero()[0]
    nodes, lane = numbers[rows], (positions - cut)[rows]
    while len(rows):  # from node to node, up to the trunk
        assert lane.min() >= 0, "a draft is no deeper than a tail reaches"
        tails[rows, lane], nodes = table.nodes[:, nodes]
        below = nodes >= 0
        rows, nodes, lane = rows[below], nodes[below], lane[below] - 1
    return tails
