"""One step laid out: which tokens are fed, where their keys go, and who sees whom.

Everything that is the same in all layers is computed here, once per step. Pure: no model, no cache.

In exact mode a token's logits do not depend on what else is in the step. A row is attended as if
its path were the text: at the places of a text, with keys padded to a length that depends on
positions alone. Only one path of a tree can lie there at a time, so a tree's side branches take
turns, in waves, and its trunk comes to lie there last. In fast mode a tree is one tile with a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
import torch

from engine.kv import Index, index
from engine.offer import Fixed
from engine.rooms import BLOCK, Room
from protos import tree

COARSE = 16  # many rows are padded to a multiple of this many
ROWS = 4  # matrix kernels round differently for fewer rows


@dataclass(frozen=True, slots=True)
class Segment(Fixed):
    """One session's share of a step.

    `context` cached tokens are seen by every row. Behind them lies a tree, `parents`, of which the
    first nodes may be cached already; `tokens` are its last nodes, fed now. Logits are wanted for
    the last `wanted` of them.
    """

    room: Room
    context: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    wanted: int
    head: int = field(init=False, compare=False)
    """Leading tokens that may be fed in an earlier step: nobody waits for their logits."""

    def __post_init__(self) -> None:
        unwanted = 0 if self.cached else len(self.tokens) - self.wanted
        head = unwanted and min(unwanted, tree.trunk(self.parents))
        object.__setattr__(self, "head", head)

    @property
    def cached(self) -> int:
        """Nodes of the tree that are cached already."""
        return len(self.parents) - len(self.tokens)

    def ready(self) -> Segment:
        """A segment is an offer of itself (`engine.offer.Offer`)."""
        return self

    def first(self, count: int) -> Segment:
        """The first `count` tokens of the head."""
        return Segment(self.room, self.context, self.tokens[:count], tree.chain(count), 0)

    def rest(self, count: int) -> Segment:
        """What comes after the first `count` tokens of the head."""
        parents = tuple(parent - count for parent in self.parents[count:])
        return Segment(self.room, self.context + count, self.tokens[count:], parents, self.wanted)


@dataclass(slots=True)
class Tile:
    """Rows of one session that attend to the same stretch of its room: `keys` positions from
    `start` on. `allowed`, bool [rows, keys], says who sees whom; None is everybody.
    """

    rows: slice
    start: int
    keys: int
    allowed: torch.Tensor | None
    row_positions: torch.Tensor  # [rows]
    key_positions: torch.Tensor  # [keys]
    exact: bool
    _biases: dict[tuple[int | None, int, int], torch.Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many rows."""
        return int(self.rows.stop - self.rows.start)

    def bias(
        self, window: int | None, repeat: int, pad: int, like: torch.Tensor
    ) -> torch.Tensor | None:
        """The additive mask of `like`'s dtype and device, [1, 1, repeat * (rows + pad), keys]; None
        if it would be zero.
        """
        if self.allowed is None and window is None:
            return None
        key = (window, repeat, pad)
        if key not in self._biases:
            near = torch.ones((), dtype=torch.bool)
            if window is not None:
                near = self.row_positions[:, None] - self.key_positions < window
            allowed = near if self.allowed is None else self.allowed & near
            if pad:
                allowed = torch.cat([allowed, allowed[:1].expand(pad, -1)])
            bias = torch.zeros(allowed.shape, dtype=like.dtype)
            bias.masked_fill_(~allowed, torch.finfo(like.dtype).min)
            self._biases[key] = bias.repeat(repeat, 1)[None, None].to(like.device)
        return self._biases[key]


@dataclass(frozen=True, slots=True)
class Wave:
    """Rows whose keys are written, where to, and the tiles that attend after that."""

    rows: Index
    places: Index
    tiles: list[Tile]


@dataclass(slots=True)
class StepPlan:
    """A step of several segments, packed; padding rows are never stored."""

    token_ids: torch.Tensor  # [1, rows]
    positions: torch.Tensor  # [1, rows]
    logits_rows: torch.Tensor  # [wanted rows of all, padded to ROWS]
    waves: list[Wave]


@dataclass(slots=True)
class Turn:
    """What one segment does in one wave."""

    rows: Sequence[int]
    places: Sequence[int]
    tiles: list[Tile]


def plan(segments: Sequence[Segment], device: torch.device, exact: bool) -> StepPlan:
    """Lay out one step."""
    ids: list[int] = []
    positions: list[int] = []
    logits_rows: list[int] = []
    turns: list[list[Turn]] = []
    for segment in segments:
        start, count = len(ids), len(segment.tokens)
        depths = tree.depths(segment.parents)
        turns.append(_turns(segment, depths, start, exact))
        ids += segment.tokens
        positions += [segment.context + depth for depth in depths[segment.cached :]]
        logits_rows += range(start + count - segment.wanted, start + count)
    padding = _rows(len(ids), exact) - len(ids)
    spare = [0] * (_rows(len(logits_rows), exact) - len(logits_rows))

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    waves = []
    for wave in zip_longest(*turns):
        active = [turn for turn in wave if turn]
        waves.append(
            Wave(
                index([row for turn in active for row in turn.rows], device),
                index([place for turn in active for place in turn.places], device),
                [tile for turn in active for tile in turn.tiles],
            )
        )
    return StepPlan(
        token_ids=tensor(ids + ids[:1] * padding)[None],
        positions=tensor(positions + positions[:1] * padding)[None],
        logits_rows=tensor(logits_rows + spare),
        waves=waves,
    )


def _rows(count: int, exact: bool) -> int:
    """How many rows to feed for `count`, of few different numbers: kernels are kept for each."""
    step = COARSE if count > BLOCK else 1
    return max(-(-count // step) * step, ROWS if exact else 0)


def _turns(segment: Segment, depths: list[int], start: int, exact: bool) -> list[Turn]:
    """A segment's turns: everything stored in its own place and the trunk attended, then each side
    branch written over the trunk and attended, then the trunk restored.
    """
    nodes, trunk = len(segment.parents), tree.trunk(segment.parents)
    own = range(segment.cached, nodes)  # node i is row i - cached + start
    first = segment.room.start + segment.context  # node i is stored at first + i

    def turn(stored: Sequence[int], where: Sequence[int], tiles: list[Tile]) -> Turn:
        rows = [start + node - segment.cached for node in stored]
        return Turn(rows, [first + place for place in where], tiles)

    if not exact or (segment.cached and trunk < nodes):
        return [turn(own, own, [_masked(segment, depths, start)])]
    turns = [turn(own, own, _straight(segment, depths, range(segment.cached, trunk), start))]
    if trunk == nodes:
        return turns
    fork = min(depths[trunk:])
    for run in tree.runs(segment.parents, trunk):
        path = [node for node in tree.path(segment.parents, run[-1]) if depths[node] >= fork]
        tiles = _straight(segment, depths, run, start)
        turns.append(turn(path, [depths[node] for node in path], tiles))
    overwritten = range(fork, max(depths[trunk:]) + 1)
    return [*turns, turn(overwritten, overwritten, [])]


def _straight(segment: Segment, depths: list[int], nodes: range, start: int) -> list[Tile]:
    """Tiles of nodes in one line, each seeing all positions up to its own, cut at block borders."""
    tiles = []
    shift = start - segment.cached
    position = segment.context + depths[nodes.start] if nodes else 0
    node = nodes.start
    while node < nodes.stop:
        keys = position // BLOCK * BLOCK + BLOCK
        stop = min(nodes.stop, node + keys - position)
        own = torch.arange(position, position + stop - node)
        every = torch.arange(keys)
        rows = slice(shift + node, shift + stop)
        seen = every <= own[:, None]
        tiles.append(Tile(rows, segment.room.start, keys, seen, own, every, exact=True))
        position += stop - node
        node = stop
    return tiles


def _masked(segment: Segment, depths: list[int], start: int) -> Tile:
    """All nodes fed as one tile: each sees the context, its ancestors and itself."""
    context, cached, nodes = segment.context, segment.cached, len(segment.parents)
    positions = torch.cat([torch.arange(context), context + torch.tensor(depths)])
    allowed = None
    if nodes - cached > 1 or tree.trunk(segment.parents) < nodes:
        allowed = torch.ones(nodes - cached, context + nodes, dtype=torch.bool)
        allowed[:, context:] = _ancestry(segment.parents)[cached:]
    rows = slice(start, start + nodes - cached)
    own = positions[context + cached :]
    return Tile(rows, segment.room.start, context + nodes, allowed, own, positions, exact=False)


def _ancestry(parents: tuple[int, ...]) -> torch.Tensor:
    """Which nodes each node sees, its ancestors and itself: bool [nodes, nodes]."""
    seen = np.tri(len(parents), dtype=bool)  # a row at a time is faster there
    for node in range(tree.trunk(parents), len(parents)):
        parent = parents[node]
        seen[node] = seen[parent] if parent >= 0 else False
        seen[node, node] = True
    return torch.from_numpy(seen)
