"""The memory for keys and values: a pool of fixed size, divided into pages that sessions hold.

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
)  # a slot mapping: the pool rows of some positions, as a slice if the rows are contiguous


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """The keys and values that one attention layer stores per token, and how it attends to them."""

    heads: int
    key_size: int
    value_size: int
    repeat: int = 1  # number of query heads per key head
    fused: bool = True  # whether the layer's attention is a plain softmax
    window: int | None = None  # size of the sliding window; None: full attention

    def within(self, context: int) -> LayerGeometry:
        """Return this geometry for texts of up to `context` positions. A sliding window of at least
        `context` positions is dropped, because it has no effect.
        """
        seen = self.window if self.window and self.window < context else None
        return replace(self, window=seen)


def position_bytes(layers: Sequence[LayerGeometry], dtype: torch.dtype) -> int:
    """Return the bytes that one cached token takes in all layers."""
    return dtype.itemsize * sum(la.heads * (la.key_size + la.value_size) for la in layers)


def footprint_of(
    layers: Sequence[LayerGeometry], dtype: torch.dtype, device: torch.device, step: int
) -> Footprint:
    """Return the memory footprint of cached positions if a forward pass feeds a session at most
    `step` positions. Sliding-window layers are counted separately only if they can return memory to
    the system. Memory can be returned only on a CPU and if the operating system supports it.
    Moreover, each layer's keys and values of a page must fill whole pages of the operating system.
    """
    windowed = [layer for layer in layers if layer.window]
    sizes = [layer.heads * size for layer in layers for size in (layer.key_size, layer.value_size)]
    whole = all(size * dtype.itemsize * PAGE % PAGESIZE == 0 for size in sizes)
    if not (windowed and whole and can_give_back(device)):
        return Footprint()
    most, each = max(layer.window or 0 for layer in windowed), position_bytes(windowed, dtype)
    return footprint(position_bytes(layers, dtype) - each, each, most, step)


class KVPool(PageAllocator):
    """Holds one tensor of keys and one tensor of values per layer, [positions, heads, size]. On a
    CPU, positions that were never written take no memory. Padding rows use the `padding` additional
    positions at the end. If `footprint` counts sliding-window layers separately, the pool has more
    than `positions` positions, because not all of them have memory in these layers at once.

    Positions may contain NaN values that earlier sessions left. Such NaN values are never read,
    because kernels read only positions that have been written for the row's own text.
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
        """Return whether the keys and values of positions `start` to `stop` are finite, which means
        that the model did not overflow there. The range must not be empty. A NaN or infinite value
        in an early layer also appears in the last layer, and in the last layer without a sliding
        window. Therefore only the last layer, and the last layer without a sliding window, are
        checked.
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
            # index_select makes a copy: needed, because source and target may overlap
            found = stack.stores.index_select(1, source)
            stack.stores.index_copy_(1, target, found)

    def _copy_windowed(self, source: int, target: int) -> None:
        """Copy the keys and values of one page to another page, but only in sliding-window
        layers.
        """
        for stack in self._stacks:
            if stack.windowed:
                pages = stack.stores.unflatten(1, (-1, self.page))
                pages[:, target] = pages[:, source]

    def _give_back(self, page: int, everywhere: bool) -> None:
        """Return a page's memory to the system: in all layers if `everywhere`, else only in
        sliding-window layers.
        """
        for stack in self._stacks:
            if everywhere or stack.windowed:
                stack.give_back(page * self.page, self.page)


def slot_index(slots: Sequence[int], device: torch.device) -> SlotIndex:
    """Return slots as a slice if they are contiguous, else as a tensor."""
    if slots and all(later == slot + 1 for slot, later in pairwise(slots)):
        return slice(slots[0], slots[-1] + 1)
    return torch.tensor(slots, dtype=torch.long, device=device)


def store_rows(layer: torch.Tensor, slots: SlotIndex, new: torch.Tensor) -> None:
    """Write `new`, [slots, heads, size], to the rows `slots` of a layer's keys or values."""
    if isinstance(slots, slice):
        layer[slots] = new
    else:
        layer.index_copy_(0, slots, new)
