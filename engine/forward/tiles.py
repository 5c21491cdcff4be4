"""Lay out a step as tiles, for PyTorch's own attention kernels. A tile contains the rows of one
session, and a mask of the keys to which each row attends.

Tiles work on every device and with every model. The module is pure: it uses no model and no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tandem.engine.cache.pool import SlotIndex, slot_index
from tandem.engine.forward.segment import PackedRows, Segment
from tandem.engine.forward.step_plan import StepPlan
from tandem.protos import tree

UNPADDED_ROWS = 64  # steps with up to this many rows are not padded
# larger steps are padded to a multiple of this, since kernels are cached per number of rows
ROW_MULTIPLE = 16


@dataclass(slots=True)
class Tile:
    """All rows of one session. `keys` contains the slots of the keys to which these rows attend.
    `allowed`, bool [rows, keys], marks the keys to which each row attends. If `allowed` is None,
    every row attends to all keys.
    """

    rows: slice
    keys: SlotIndex
    allowed: torch.Tensor | None
    row_positions: torch.Tensor  # [rows]
    key_positions: torch.Tensor  # [keys]
    _biases: dict[tuple[int | None, int], torch.Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.rows.stop - self.rows.start)

    def bias(self, window: int | None, repeat: int, like: torch.Tensor) -> torch.Tensor | None:
        """Return the additive attention mask, [1, 1, repeat * rows, keys], in the dtype and on the
        device of `like`. Return None if no key is masked.
        """
        if self.allowed is None and window is None:
            return None
        key = (window, repeat)
        if key not in self._biases:
            near = torch.ones((), dtype=torch.bool)
            if window is not None:
                near = self.row_positions[:, None] - self.key_positions < window
            allowed = near if self.allowed is None else self.allowed & near
            bias = torch.zeros(allowed.shape, dtype=like.dtype)
            bias.masked_fill_(~allowed, torch.finfo(like.dtype).min)
            self._biases[key] = bias.repeat(repeat, 1)[None, None].to(like.device)
        return self._biases[key]


@dataclass(frozen=True, slots=True)
class TilePlan(StepPlan):
    """The plan of a step whose attention is computed tile by tile."""

    tiles: list[Tile]


def tile_plan(segments: Sequence[Segment], device: torch.device) -> TilePlan:
    """Return the tile plan of a step that feeds the given segments."""
    tiles, start = [], 0
    for segment in segments:
        tiles.append(_tile(segment, start, device))
        start += len(segment.tokens)
    return TilePlan.of(PackedRows.of(segments), device, _padded, tiles=tiles)


def _padded(count: int) -> int:
    return -(-count // ROW_MULTIPLE) * ROW_MULTIPLE if count > UNPADDED_ROWS else count


def _tile(segment: Segment, start: int, device: torch.device) -> Tile:
    """Return the tile of a segment whose first row is row `start` of the step. Each row attends to
    the context, to its ancestors in the tree and to itself.
    """
    context, cached, nodes = segment.context, segment.cached, len(segment.parents)
    positions = torch.cat(
        [torch.arange(context), context + torch.tensor(tree.depths(segment.parents))]
    )
    allowed = None
    if nodes - cached > 1 or tree.trunk(segment.parents) < nodes:
        allowed = torch.ones(nodes - cached, context + nodes, dtype=torch.bool)
        allowed[:, context:] = _ancestry(segment.parents)[cached:]
    rows = slice(start, start + nodes - cached)
    row_positions = positions[context + cached :]
    keys = slot_index(segment.table.slots(0, context + nodes), device)
    return Tile(rows, keys, allowed, row_positions, positions)


def _ancestry(parents: tuple[int, ...]) -> torch.Tensor:
    """Return a mask of the nodes to which each node attends: its ancestors and itself, bool [nodes,
    nodes].
    """
    seen = np.tri(len(parents), dtype=bool)  # NumPy is faster than PyTorch for single rows
    for node in range(tree.trunk(parents), len(parents)):
        parent = parents[node]
        seen[node] = seen[parent] if parent >= 0 else False
        seen[node, node] = True
    return torch.from_numpy(seen)
