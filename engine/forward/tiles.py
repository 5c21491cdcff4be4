"""A step as tiles: the rows of a session with a mask of the keys that each sees, for PyTorch's own
kernels.

What suits any device and any model. Pure: no model, no cache.
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

FEW = 64  # rows, up to which there is no padding
COARSE = 16  # many rows are padded to a multiple of this many: kernels are kept for each number


@dataclass(slots=True)
class Tile:
    """All rows of one session, on the `keys` at some slots. `allowed`, bool [rows, keys], marks
    which keys a row sees; None: all.
    """

    rows: slice
    keys: SlotIndex
    allowed: torch.Tensor | None
    row_positions: torch.Tensor  # [rows]
    key_positions: torch.Tensor  # [keys]
    _biases: dict[tuple[int | None, int], torch.Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many rows."""
        return int(self.rows.stop - self.rows.start)

    def bias(self, window: int | None, repeat: int, like: torch.Tensor) -> torch.Tensor | None:
        """The additive mask of `like`'s dtype and device, [1, 1, repeat * rows, keys]; None if it
        would be zero.
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
    """A step whose rows attend tile by tile."""

    tiles: list[Tile]


def tile_plan(segments: Sequence[Segment], device: torch.device) -> TilePlan:
    """Lay out one step."""
    tiles, start = [], 0
    for segment in segments:
        tiles.append(_tile(segment, start, device))
        start += len(segment.tokens)
    return TilePlan.of(PackedRows.of(segments), device, _padded, tiles=tiles)


def _padded(count: int) -> int:
    return -(-count // COARSE) * COARSE if count > FEW else count


def _tile(segment: Segment, start: int, device: torch.device) -> Tile:
    """The tile of a segment whose rows are those from `start` on: each sees the context, its
    ancestors and itself.
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
    """Which nodes each node sees, its ancestors and itself: bool [nodes, nodes]."""
    seen = np.tri(len(parents), dtype=bool)  # a row at a time is faster there
    for node in range(tree.trunk(parents), len(parents)):
        parent = parents[node]
        seen[node] = seen[parent] if parent >= 0 else False
        seen[node, node] = True
    return torch.from_numpy(seen)
