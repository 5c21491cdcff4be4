"""Memory for keys and values: a bounded pool of positions in pages, which sessions hold.

Owns memory, not meaning: which tokens a page holds is known to `sessions` and `prefix_tree`, which
pages are free to `pages`.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import TypeAlias

import torch

from tandem.engine.cache.pages import PAGE, PageAllocator, PageTable
from tandem.engine.cache.prefix_tree import PrefixTree

SlotIndex: TypeAlias = (
    slice | torch.Tensor
)  # numbers of rows; those side by side cost less as a slice


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """What one attention layer stores per token, and how it attends to it."""

    heads: int
    key_size: int
    value_size: int
    repeat: int = 1  # query heads for each of `heads`
    fused: bool = True  # by a plain softmax


def position_bytes(layers: Sequence[LayerGeometry], dtype: torch.dtype) -> int:
    """Bytes that one cached token takes in all layers."""
    return dtype.itemsize * sum(la.heads * (la.key_size + la.value_size) for la in layers)


class KVPool(PageAllocator):
    """Positions in every layer, [positions, heads, size] each; untouched ones cost no memory.
    `padding` more lie after them, for padding rows. `reads_unseen`: the kernels may multiply by
    zero what a row does not see, instead of skipping it, so that no NaN must be left anywhere.
    """

    def __init__(
        self,
        layers: Sequence[LayerGeometry],
        positions: int,
        dtype: torch.dtype,
        device: torch.device,
        page: int = PAGE,
        padding: int = 0,
        reads_unseen: bool = False,
    ) -> None:
        super().__init__(positions, page)
        self._reads_unseen = reads_unseen
        keys = [(layer.heads, layer.key_size) for layer in layers]
        values = [(layer.heads, layer.value_size) for layer in layers]
        rows = self.positions + padding
        stacks = {
            shape: _zeros((count, rows, *shape), dtype, device)
            for shape, count in Counter(keys + values).items()
        }
        left = {shape: iter(stack.unbind()) for shape, stack in stacks.items()}
        self.keys = [next(left[shape]) for shape in keys]
        self.values = [next(left[shape]) for shape in values]
        self._stacks = list(stacks.values())  # the same, [stores, positions, heads, size]
        self._device = device
        self.prefixes = PrefixTree(self)

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Copy the positions from `start` to `stop` of one table to another, in every layer."""
        self._copy(source.slots(start, stop), target.slots(start, stop))

    def compact(self, table: PageTable, start: int, path: Sequence[int]) -> None:
        """Move the positions `start + path[i]` to `start + i` in every layer."""
        moves = [(node, place) for place, node in enumerate(path) if node != place]
        if moves:
            slots = table.slots(start, start + max(path) + 1)
            self._copy([slots[node] for node, _ in moves], [slots[place] for _, place in moves])

    def finite(self, table: PageTable, start: int, stop: int) -> bool:
        """Whether the model did not overflow on a table's positions from `start` to `stop`, which
        are one or more: what is no number in an early layer is none in the last.
        """
        seen = slot_index(table.slots(start, stop), self._device)
        extremes = (torch.aminmax(each[seen]) for each in (self.keys[-1], self.values[-1]))
        return all(bool(each.isfinite()) for both in extremes for each in both)  # NaN is either

    def wipe(self, table: PageTable, start: int = 0) -> None:
        """Make the positions of a table finite again, from `start` on, as far as it has the pages
        alone, if kernels may read what their rows do not see. Those for CPUs never do, and there a
        position that was never written has no memory yet: to write to it would take that memory
        while all sessions wait.
        """
        if not self._reads_unseen:
            return
        for number in range(start // self.page, len(table.pages)):
            if self.alone(table.pages[number]):
                slots = table.slots(max(start, number * self.page), (number + 1) * self.page)
                for stack in self._stacks:
                    stack[:, slots[0] : slots[-1] + 1].zero_()

    def _copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        to_slots = partial(torch.tensor, dtype=torch.long, device=self._device)
        source, target = to_slots(sources), to_slots(targets)
        for stack in self._stacks:
            stack.index_copy_(1, target, stack.index_select(1, source))  # first a copy


def slot_index(numbers: Sequence[int], device: torch.device) -> SlotIndex:
    """These numbers as a slice where they follow each other, else as a tensor."""
    if numbers and all(later == number + 1 for number, later in pairwise(numbers)):
        return slice(numbers[0], numbers[-1] + 1)
    return torch.tensor(numbers, dtype=torch.long, device=device)


def store_rows(layer: torch.Tensor, slots: SlotIndex, new: torch.Tensor) -> None:
    """Write `new`, [slots, heads, size], to slots in a layer's keys or values."""
    if isinstance(slots, slice):
        layer[slots] = new
    else:
        layer.index_copy_(0, slots, new)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU, pages that the system hands out when they are first written. Small pages: a
    new session touches as many of the large ones as there are layers, while all sessions wait.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = prod(shape)
    size = max(1, count * dtype.itemsize)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes") from error
    with suppress(OSError, AttributeError):  # a system that has no others
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return (
        torch.frombuffer(pages, dtype=torch.uint8)[: count * dtype.itemsize].view(dtype).view(shape)
    )
