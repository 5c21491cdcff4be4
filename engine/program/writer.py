"""Write instructions. The writer finds where the numbers of tensors lie, and adds memory for
intermediate results that the network does not have.
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
    """The form of a call is not one that a rule takes."""


def storage_of(tensor: torch.Tensor) -> Hashable:
    """Return a key that all tensors on the same memory share."""
    key: Hashable = tensor.untyped_storage()._cdata
    return key


def both(tensor: Twins, view: Callable[[torch.Tensor], torch.Tensor]) -> Twins:
    """Return a view of a tensor in both passes."""
    return view(tensor[0]), view(tensor[1])


class Writer:
    """Writes the instructions of one call into `written`. `kept` are the objects that instructions
    point to. `sizes` are the bytes per row of storages.
    """

    def __init__(self, counts: Counts) -> None:
        self.kept: list[Any] = []
        self.sizes: dict[Hashable, int] = {}
        self.written: list[Written] = []
        self._counts = counts

    def keep(self, given: ctypes.Structure | torch.Tensor) -> int:
        """Keep an object that instructions point to, and return its address."""
        self.kept.append(given)
        if isinstance(given, torch.Tensor):
            return given.data_ptr()
        return ctypes.addressof(given)

    def new(self, like: Twins, dtype: torch.dtype) -> Twins:
        """Return a new tensor of the same shape with its own storage."""
        one, two = (torch.empty(each.shape, dtype=dtype, device="meta") for each in like)
        self.kept += [one, two]  # kept alive, so no later storage can have the same key
        self.sizes[storage_of(one)] = one.nbytes // self._counts.rows[0]
        return one, two

    def of_rows(self, dtype: torch.dtype, *sizes: int) -> Twins:
        """Return a new tensor [rows, *sizes]."""
        one, two = (torch.empty(rows, *sizes, device="meta") for rows in self._counts.rows)
        return self.new((one, two), dtype)

    def layout(self, *tensors: Twins, inner: int | None = None) -> Layout:
        """Return the layout of some tensors. Raises Unfit if instructions do not support the layout
        or one of the dtypes.
        """
        found = layout_of(self._counts, tensors, inner)
        if found is None or any(one.dtype not in ELEMENT_TYPES for one, _ in tensors):
            raise Unfit
        return found

    def write(
        self, operation: Operation, layout: Layout, tensors: Sequence[Twins], **more: Any
    ) -> None:
        """Write an instruction whose result is the first of the tensors."""
        views = zip(tensors, layout.views, strict=True)
        result, *reads = [Place(storage_of(one), view) for (one, _), view in views]
        kind = ELEMENT_TYPES[tensors[0][0].dtype]
        size = layout.outer, layout.inner
        self.written.append(Written(operation, kind, *size, result, reads, **more))

    def copy(self, one: Twins, made: Twins) -> None:
        """Write an instruction that copies a tensor into one of other strides or dtype."""
        kind = ELEMENT_TYPES.get(one[0].dtype)
        self.write(Operation.COPY, self.layout(made, one), [made, one], source_kind=kind)

    def whole(self, tensor: Twins, size: int) -> View | None:
        """Return the view of a tensor as rows of `size` numbers, one after the other. Return None
        if the numbers of the tensor are laid out in another way.
        """
        found = self.layout(tensor)
        (view,) = found.views
        joined = found.side_by_side and (found.outer, found.inner) == (1, size)
        return view if joined and (view.row.fixed, view.row.each) == (size, 0) else None

    def rows(self, tensor: Twins, size: int) -> Place:
        """Return the place of a tensor as rows of `size` numbers. If the numbers are laid out in
        another way, write a copy first. Raises Unfit if the tensor does not have `size` numbers per
        row.
        """
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
        """Return the place of a result as rows of `size` numbers, one after the other. Raises Unfit
        if the numbers of the result are laid out in another way.
        """
        if not (view := self.whole(tensor, size)):
            raise Unfit
        return Place(storage_of(tensor[0]), view)
