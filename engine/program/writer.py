"""Instructions as they are written: where the numbers of tensors lie, and memory for what comes in
between.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from tandem.engine.forward.cpu.kernels import ELEMENT_TYPES
from tandem.engine.program.instructions import Operation, Place, Written
from tandem.engine.program.layout import Counts, Layout, Twins, View, layout_of


class Unfit(Exception):
    """A call is not of the form that a rule takes."""


def storage_of(tensor: torch.Tensor) -> Hashable:
    """What all tensors on the same memory have in common."""
    key: Hashable = tensor.untyped_storage()._cdata
    return key


def both(tensor: Twins, view: Callable[[torch.Tensor], torch.Tensor]) -> Twins:
    """A view of both of them."""
    return view(tensor[0]), view(tensor[1])


class Writer:
    """What is `written` of one call. `kept` is what instructions point to; `sizes` are bytes of a
    row, of storages that no call has.
    """

    def __init__(self, counts: Counts) -> None:
        self.kept: list[Any] = []
        self.sizes: dict[Hashable, int] = {}
        self.written: list[Written] = []
        self._counts = counts

    def keep(self, given: ctypes.Structure | torch.Tensor) -> int:
        """The address of what is kept."""
        self.kept.append(given)
        if isinstance(given, torch.Tensor):
            return given.data_ptr()
        return ctypes.addressof(given)

    def new(self, like: Twins, dtype: torch.dtype) -> Twins:
        """A tensor of the same shape."""
        one, two = (torch.empty(each.shape, dtype=dtype, device="meta") for each in like)
        self.kept += [one, two]  # or others could pass for them
        self.sizes[storage_of(one)] = one.nbytes // self._counts.rows[0]
        return one, two

    def of_rows(self, dtype: torch.dtype, *sizes: int) -> Twins:
        """A tensor of so many numbers for each row."""
        one, two = (torch.empty(rows, *sizes, device="meta") for rows in self._counts.rows)
        return self.new((one, two), dtype)

    def layout(self, *tensors: Twins, inner: int | None = None) -> Layout:
        """Where the numbers of some tensors are. Raises Unfit."""
        found = layout_of(self._counts, tensors, inner)
        if found is None or any(one.dtype not in ELEMENT_TYPES for one, _ in tensors):
            raise Unfit
        return found

    def write(
        self, operation: Operation, layout: Layout, tensors: Sequence[Twins], **more: Any
    ) -> None:
        """An instruction whose result is the first of the tensors."""
        views = zip(tensors, layout.views, strict=True)
        result, *reads = [Place(storage_of(one), view) for (one, _), view in views]
        kind = ELEMENT_TYPES[tensors[0][0].dtype]
        size = layout.outer, layout.inner
        self.written.append(Written(operation, kind, *size, result, reads, **more))

    def copy(self, one: Twins, made: Twins) -> None:
        """A copy of other strides, or of another dtype."""
        kind = ELEMENT_TYPES.get(one[0].dtype)
        self.write(Operation.COPY, self.layout(made, one), [made, one], source_kind=kind)

    def whole(self, tensor: Twins, size: int) -> View | None:
        """A tensor as rows of so many numbers, one after the other; None if they lie elsewhere."""
        found = self.layout(tensor)
        (view,) = found.views
        joined = found.side_by_side and (found.outer, found.inner) == (1, size)
        return view if joined and (view.row.fixed, view.row.each) == (size, 0) else None

    def rows(self, tensor: Twins, size: int) -> Place:
        """The same, of a copy if need be. Raises Unfit."""
        if view := self.whole(tensor, size):
            return Place(storage_of(tensor[0]), view)
        one, two = (each.shape for each in tensor)
        leading = (0,) * next(dim for dim in range(len(one)) if one[dim] != two[dim])
        given = both(tensor, lambda each: each[leading])
        copied = self.new(given, tensor[0].dtype)
        self.copy(given, copied)
        if not (view := self.whole(copied, size)):
            raise Unfit
        return Place(storage_of(copied[0]), view)

    def result(self, tensor: Twins, size: int) -> Place:
        """A tensor that is made as such rows. Raises Unfit if it is made otherwise."""
        if not (view := self.whole(tensor, size)):
            raise Unfit
        return Place(storage_of(tensor[0]), view)
