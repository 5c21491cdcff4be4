"""Memory for keys and values: a bounded pool of positions in pages, which sessions hold.

The pool only owns the memory. `sessions` and `prefix_tree` know which tokens a page holds, and
`ledger` knows which pages are free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from mmap import PAGESIZE
from typing import TypeAlias

import torch

from tandem.engine.cache.allocator import PageAllocator
from tandem.engine.cache.footprint import Footprint, footprint
from tandem.engine.cache.ledger import EVERYWHERE
from tandem.engine.cache.pages import PAGE, PageTable
from tandem.engine.cache.prefix_tree import PrefixTree
from tandem.engine.cache.stack import Stack, can_give_back

SlotIndex: TypeAlias = (
    slice | torch.Tensor
)  # a slot mapping: the rows of the pool for some positions; neighbouring rows are a slice


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """The keys and values that one attention layer stores per token, and how it attends to them."""

    heads: int
    key_size: int
    value_size: int
    repeat: int = 1  # query heads for each key head
    fused: bool = True  # whether the layer attends by a plain softmax
    window: int | None = None  # how many of the last positions the layer sees; None means all

    def within(self, context: int) -> LayerGeometry:
        """Return this geometry for texts of up to `context` positions. A window that covers all of
        these texts is dropped.
        """
        seen = self.window if self.window and self.window < context else None
        return replace(self, window=seen)


def position_bytes(layers: Sequence[LayerGeometry], dtype: torch.dtype) -> int:
    """Return the bytes that one cached token takes in all layers."""
    return dtype.itemsize * sum(la.heads * (la.key_size + la.value_size) for la in layers)


def footprint_of(
    layers: Sequence[LayerGeometry], dtype: torch.dtype, device: torch.device, step: int
) -> Footprint:
    """Return the footprint of cached positions if a pass feeds a session at most `step` positions.
    The footprint counts layers with a window separately only if these layers can give memory back.
    For that, the device must be a CPU whose system allows it, and each page of positions must
    consist of whole pages of the system.
    """
    windowed = [layer for layer in layers if layer.window]
    sizes = [layer.heads * size for layer in layers for size in (layer.key_size, layer.value_size)]
    whole = all(size * dtype.itemsize * PAGE % PAGESIZE == 0 for size in sizes)
    if not (windowed and whole and can_give_back(device)):
        return Footprint()
    most, each = max(layer.window or 0 for layer in windowed), position_bytes(windowed, dtype)
    return footprint(position_bytes(layers, dtype) - each, each, most, step)


class KVPool(PageAllocator):
    """Holds the keys and values of every layer, [positions, heads, size] each. On a CPU, positions
    that were never written take no memory. `padding` more positions lie at the end, for padding
    rows. If `footprint` counts layers with a window separately, the pool has more positions than
    `positions`.

    Sessions that have ended may leave NaN values. Such values do no harm, because kernels read only
    the positions of a row's own text, and all of these positions were written for that text.
    """

    def __init__(
        self,
        layers: Sequence[LayerGeometry],
        positions: int,
        dtype: torch.dtype,
        device: torch.device,
        padding: int = 0,
        footprint: Footprint = EVERYWHERE,
    ) -> None:
        super().__init__(positions, footprint)
        self.windows = [layer.window if footprint.windowed else None for layer in layers]
        given = list(zip(layers, map(bool, self.windows), strict=True))
        keys = [(windowed, layer.heads, layer.key_size) for layer, windowed in given]
        values = [(windowed, layer.heads, layer.value_size) for layer, windowed in given]
        rows = self.numbered * self.page + padding
        stacks = {
            kind: Stack((count, rows, *kind[1:]), dtype, device, self.positions + padding, kind[0])
            for kind, count in Counter(keys + values).items()
        }
        left = {kind: iter(stack.stores.unbind()) for kind, stack in stacks.items()}
        self.keys = [next(left[kind]) for kind in keys]
        self.values = [next(left[kind]) for kind in values]
        self._stacks = list(stacks.values())  # keys and values, [stores, positions, heads, size]
        self._device = device
        self.prefixes = PrefixTree(self)

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Copy the keys and values of positions `start` to `stop` from one table to another."""
        self._copy(source.slots(start, stop), target.slots(start, stop))

    def compact(self, table: PageTable, start: int, path: Sequence[int]) -> None:
        """Move the keys and values of positions `start + path[i]` to `start + i` in every layer."""
        moves = [(node, offset) for offset, node in enumerate(path) if node != offset]
        if moves:
            slots = table.slots(start, start + max(path) + 1)
            self._copy([slots[node] for node, _ in moves], [slots[offset] for _, offset in moves])

    def finite(self, table: PageTable, start: int, stop: int) -> bool:
        """Return whether the model did not overflow at a table's positions from `start` to `stop`,
        which must be at least one position. A value that is NaN or infinite in an early layer is
        also NaN or infinite in the last layer, and in the last layer without a window. Therefore
        only these two layers are checked.
        """
        seen = slot_index(table.slots(start, stop), self._device)
        kept = max((n for n, window in enumerate(self.windows) if not window), default=-1)
        stores = (store[layer] for layer in {-1, kept} for store in (self.keys, self.values))
        extremes = (torch.aminmax(each[seen]) for each in stores)
        # the extremes are NaN if any value is NaN
        return all(bool(each.isfinite()) for both in extremes for each in both)

    def _copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        to_slots = partial(torch.tensor, dtype=torch.long, device=self._device)
        source, target = to_slots(sources), to_slots(targets)
        for stack in self._stacks:
            # a copy, because source and target may overlap
            found = stack.stores.index_select(1, source)
            stack.stores.index_copy_(1, target, found)

    def _copy_windowed(self, source: int, target: int) -> None:
        """Copy the content of one page to another in layers with a window."""
        for stack in self._stacks:
            if stack.windowed:
                pages = stack.stores.unflatten(1, (-1, self.page))
                pages[:, target] = pages[:, source]

    def _give_back(self, page: int, everywhere: bool) -> None:
        """Give a page's memory back to the system, in all layers or only in those with a window."""
        for stack in self._stacks:
            if everywhere or stack.windowed:
                stack.give_back(page * self.page, self.page)


def slot_index(slots: Sequence[int], device: torch.device) -> SlotIndex:
    """Return slots as a slice if they follow each other, else as a tensor."""
    if slots and all(later == slot + 1 for slot, later in pairwise(slots)):
        return slice(slots[0], slots[-1] + 1)
    return torch.tensor(slots, dtype=torch.long, device=device)


def store_rows(layer: torch.Tensor, slots: SlotIndex, new: torch.Tensor) -> None:
    """Write `new`, [slots, heads, size], to the rows `slots` of a layer's keys or values."""
    if isinstance(slots, slice):
        layer[slots] = new
    else:
        layer.index_copy_(0, slots, new)
