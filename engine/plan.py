"""One step laid out: which tokens are fed, where their keys go, and who sees whom.

Everything that is the same in all layers is computed here, once per step. Pure: no model, no cache.

Rows are grouped into tiles so that a token's logits do not depend on what else is in the step: a
tile's rows are padded to a multiple of four (matrix kernels round differently for one to three
rows) and its keys to a length that depends on positions alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.kv import BLOCK
from protos import tree

ROWS = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """One session's share of a step.

    `context` cached tokens are seen by every row. Behind them lies a tree, `parents`, of which the
    first nodes may be cached already; `tokens` are its last nodes, fed now. Logits are wanted for
    the last `wanted` of them.
    """

    slot: int
    context: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    wanted: int

    @property
    def cached(self) -> int:
        """Nodes of the tree that are cached already."""
        return len(self.parents) - len(self.tokens)


@dataclass(slots=True)
class Tile:
    """Rows of one session that attend to the same stretch of its slab."""

    slot: int
    rows: slice
    keys: int
    allowed: torch.Tensor  # bool [rows, keys]
    row_positions: torch.Tensor  # [rows]
    key_positions: torch.Tensor  # [keys]
    pad: int
    _bias: dict[tuple[int | None, int], torch.Tensor] = field(default_factory=dict)

    def bias(self, window: int | None, repeat: int, like: torch.Tensor) -> torch.Tensor:
        """The additive mask of `like`'s dtype and device, [1, 1, repeat * (rows + pad), keys]."""
        key = (window, repeat)
        if key not in self._bias:
            allowed = self.allowed
            if window is not None:
                allowed = allowed & (self.row_positions[:, None] - self.key_positions < window)
            if self.pad:
                allowed = torch.cat([allowed, allowed[:1].expand(self.pad, -1)])
            bias = torch.zeros(allowed.shape, dtype=like.dtype)
            bias.masked_fill_(~allowed, torch.finfo(like.dtype).min)
            self._bias[key] = bias.repeat(repeat, 1)[None, None].to(like.device)
        return self._bias[key]


@dataclass(slots=True)
class StepPlan:
    """A step of several segments, packed. `fed` counts real rows; the rest is padding that is never
    stored.
    """

    token_ids: torch.Tensor  # [1, rows]
    positions: torch.Tensor  # [1, rows]
    fed: int
    write_slots: torch.Tensor  # [fed]
    write_places: torch.Tensor  # [fed]
    logits_rows: torch.Tensor  # [wanted rows, padded to ROWS]
    wanted: list[int]  # per segment
    tiles: list[Tile]


def plan(segments: Sequence[Segment], device: torch.device) -> StepPlan:
    """Lay out one step."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    places: list[int] = []
    logits_rows: list[int] = []
    tiles: list[Tile] = []
    for segment in segments:
        depths = tree.depths(segment.parents)
        start, cached, count = len(ids), segment.cached, len(segment.tokens)
        tiles += _tiles(segment, depths, start)
        ids += segment.tokens
        positions += [segment.context + depth for depth in depths[cached:]]
        slots += [segment.slot] * count
        first = segment.context + cached
        places += range(first, first + count)
        logits_rows += range(start + count - segment.wanted, start + count)
    fed = len(ids)
    padding = max(0, ROWS - fed)
    spare = [0] * max(0, ROWS - len(logits_rows))

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=device)

    return StepPlan(
        token_ids=tensor(ids + ids[:1] * padding)[None],
        positions=tensor(positions + positions[:1] * padding)[None],
        fed=fed,
        write_slots=tensor(slots),
        write_places=tensor(places),
        logits_rows=tensor(logits_rows + spare),
        wanted=[segment.wanted for segment in segments],
        tiles=tiles,
    )


def _tiles(segment: Segment, depths: list[int], start: int) -> list[Tile]:
    """The tiles of one segment: the trunk of its tree cut at block borders, then the side branches
    together.
    """
    context, cached, nodes = segment.context, segment.cached, len(segment.parents)
    trunk = max(cached, tree.trunk(segment.parents))
    positions = torch.tensor(
        [*range(context), *(context + depth for depth in depths)]
    )  # by place in the slab
    side = _side(segment.parents, trunk)
    tiles = []
    first = cached
    while first < nodes:
        end = -(-(context + nodes) // BLOCK) * BLOCK
        last = nodes
        if first < trunk:
            end = (context + first) // BLOCK * BLOCK + BLOCK
            last = min(trunk, end - context)
            allowed = torch.arange(end) <= torch.arange(context + first, context + last)[:, None]
        else:
            allowed = torch.zeros(nodes - first, end, dtype=torch.bool)
            allowed[:, :context] = True
            allowed[:, context : context + nodes] = side[first - trunk :]
        keys = torch.zeros(end, dtype=torch.long)
        keys[: len(positions)] = positions[:end]
        rows = slice(start + first - cached, start + last - cached)
        own = positions[context + first : context + last]
        tiles.append(Tile(segment.slot, rows, end, allowed, own, keys, (first - last) % ROWS))
        first = last
    return tiles


def _side(parents: tuple[int, ...], trunk: int) -> torch.Tensor:
    """Which nodes those behind the trunk see, themselves and their ancestors: bool [nodes - trunk,
    nodes].
    """
    visible = torch.zeros(len(parents) - trunk, len(parents), dtype=torch.bool)
    for row, node in enumerate(range(trunk, len(parents))):
        while node >= 0:
            visible[row, node] = True
            node = parents[node]
    return visible
