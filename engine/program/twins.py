"""Twins are corresponding tensors of two passes that differ only in their number of rows. This
module records which tensors correspond, where their contents come from, and which properties depend
on the number of rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum, auto
from typing import Any

import torch

from tandem.engine.program.layout import Counts
from tandem.engine.program.program import Counted, Value
from tandem.engine.program.tape import Unrecordable
from tandem.engine.program.writer import storage_of


class Origin(Enum):
    """Tells where the contents of a storage come from."""

    KEPT = auto()  # the storage contains weights, or results that depend on weights alone
    PLAIN = auto()  # the storage is written by a call, or contains data of the plan
    WRITTEN = auto()  # the storage is written by instructions


class TwinTensors:
    """Maps each tensor of the first pass to its twin, the corresponding tensor of the second."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._origins: dict[Hashable, Origin] = {}
        self._bases: dict[Hashable, torch.Tensor] = {}  # the first tensor in each storage
        self._others: set[Hashable] = set()  # storages of the second pass
        # maps the id of each tensor of the first pass to its twin in the second pass
        self._twins: dict[int, torch.Tensor] = {}
        self._values: dict[int, int] = {}  # maps the id of a tensor to its index among the values
        self._count = 0

    def _enter(self, one: torch.Tensor, two: torch.Tensor, origin: Origin) -> None:
        self._twins[id(one)] = two
        self._others.add(storage_of(two))
        self._origins.setdefault(storage_of(one), origin)
        self._bases.setdefault(storage_of(one), one)

    def _value(self, tensor: torch.Tensor | None = None) -> int:
        """Return the index of a tensor among the values of the program. A new tensor gets a new
        index. If no tensor is given, return a new index for a block of memory.
        """
        number = self._values.get(id(tensor), self._count)
        if number == self._count:
            self._count += 1
            if tensor is not None:
                self._values[id(tensor)] = number
        return number

    def _literal(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has the same contents and the same layout in all passes."""
        other = self._twins[id(tensor)]
        kept = self._origins[storage_of(tensor)] is Origin.KEPT
        layouts = ((each.shape, each.stride(), each.storage_offset()) for each in (tensor, other))
        return kept and len(set(layouts)) == 1

    def _argument(self, one: Any, two: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return one if self._literal(one) else Value(self._value(one))
        if one is two or one == two:
            return one
        if type(one) is not int:
            raise Unrecordable(f"with other rows, a call gets the argument {two} instead of {one}")
        return self._counted(one, two)

    def _counted(self, one: int, two: int) -> Counted:
        for of_logits, extent_of in enumerate((self._counts.extent, self._counts.by_num_logits)):
            if extent := extent_of(one, two):
                return Counted(extent, bool(of_logits))
        raise Unrecordable(f"with other rows, a call gets the argument {two} instead of {one}")


def tensors_in(some: Sequence[Any]) -> list[torch.Tensor]:
    return [each for each in some if isinstance(each, torch.Tensor)]
