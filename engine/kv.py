"""Key and value slabs: one contiguous stretch per session and layer.

Owns memory, not meaning: which tokens a slot holds is known to `sessions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BLOCK = 64  # key lengths are rounded up to this many positions


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """What one attention layer stores per token."""

    heads: int
    key_size: int
    value_size: int


class SlabCache:
    """Slots of `length` positions in every layer.

    Must not hold NaN: masked keys are multiplied by zero, not skipped.
    """

    def __init__(
        self,
        layers: Sequence[LayerGeometry],
        slots: int,
        length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.length = -(-length // BLOCK) * BLOCK
        self.slots = slots
        self._free = list(range(slots))[::-1]

        def slab(heads: int, size: int) -> torch.Tensor:
            return torch.zeros(slots, heads, self.length, size, dtype=dtype, device=device)

        with torch.inference_mode():
            self.keys = [
                slab(layer.heads, layer.key_size) for layer in layers
            ]  # [slots, heads, length, size]
            self.values = [slab(layer.heads, layer.value_size) for layer in layers]

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A free slot; there must be one."""
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Return a slot; its content is dead but stays finite."""
        assert slot not in self._free
        self._free.append(slot)

    def wipe(self, slot: int) -> None:
        """Make a slot's content finite again."""
        for store in (*self.keys, *self.values):
            store[slot].zero_()

    def compact(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Move the rows `start + path[i]` to `start + i` in every layer."""
        moves = [(node, place) for place, node in enumerate(path) if node != place]
        if not moves:
            return
        source = torch.tensor([start + node for node, _ in moves], device=self.keys[0].device)
        target = torch.tensor([start + place for _, place in moves], device=self.keys[0].device)
        for store in (*self.keys, *self.values):
            store[slot, :, target] = store[
                slot, :, source
            ]  # the right side is a copy: overlap is safe
