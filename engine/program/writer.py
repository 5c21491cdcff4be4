"""Write the instructions of programs. The writer determines where the numbers of tensors are
stored, and adds memory for intermediate results that only instructions need.
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
    """A rule does not support the form of a call."""


def storage_of(tensor: torch.Tensor) -> Hashable:
    """Return a key that identifies the storage of a tensor: all tensors in the same memory share
    it.
    """
    key: Hashable = tensor.untyped_storage()._cdata
    return key


def both(tensor: Twins, view: Callable[[torch.Tensor], torch.Tensor]) -> Twins:
    """Apply the function `view` to a tensor of the first pass and to its twin in the second."""
    return view(tensor[0]), view(tensor[1])


class Writer:
    """Collects the instructions for one call in `written`. `kept` lists objects that must stay
    alive because instructions point to them. `sizes` contains the bytes per row of each storage.
    """

    def __init__(self, counts: Counts) -> None:
        self.kept: list[Any] = []
        self.sizes: dict[Hashable, int] = {}
        self.written: list[Written] = []
        self._counts = counts

    def keep(self, given: ctypes.Structure | torch.Tensor) -> int:
        """Keep an object alive because instructions point to it, and return its address."""
        self.kept.append(given)
        if isinstance(given, torch.Tensor):
            return given.data_ptr()
        return ctypes.addressof(given)

    def new(self, like: Twins, dtype: torch.dtype) -> Twins:
        """Return a new tensor of the same shape as `like`, with a storage of its own."""
        one, two = (torch.empty(each.shape, dtype=dtype, device="meta") for each in like)
        self.kept += [one, two]  # kept alive, so no later storage can have the same key
        self.sizes[storage_of(one)] = one.nbytes // self._counts.rows[0]
        return one, two

    def of_rows(self, dtype: torch.dtype, *sizes: int) -> Twins:
        """Return a new tensor of the shape [rows, *sizes]."""
        one, two = (torch.empty(rows, *sizes, device="meta") for rows in self._counts.rows)
        return self.new((one, two), dtype)

    def layout(self, *tensors: Twins, inner: int | None = None) -> Layout:
        """Return the common layout of some tensors. Raises Unfit if instructions do not support the
        layout or one of the dtypes.
        """
        found = layout_of(self._counts, tensors, inner)
        if found is None or any(one.dtype not in ELEMENT_TYPES for one, _ in tensors):
            raise Unfit
        return found

    def write(
        self, operation: Operation, layout: Layout, tensors: Sequence[Twins], **more: Any
    ) -> None:
        """Write an instruction for an operation. The first tensor is the result of the operation,
        and the other tensors are its operands.
        """
        views = zip(tensors, layout.views, strict=True)
        result, *reads = [Place(storage_of(one), view) for (one, _), view in views]
        kind = ELEMENT_TYPES[tensors[0][0].dtype]
        size = layout.outer, layout.inner
        self.written.append(Written(operation, kind, *size, result, reads, **more))

    def copy(self, one: Twins, made: Twins) -> None:
        """Write an instruction that copies the tensor `one` to `made`, which may have other strides
        or another dtype.
        """
        kind = ELEMENT_TYPES.get(one[0].dtype)
        self.write(Operation.COPY, self.layout(made, one), [made, one], source_kind=kind)

    def whole(self, tensor: Twins, size: int) -> View | None:
        """Return the view of a tensor as contiguous rows of `size` numbers. Return None if the
        tensor has another memory layout.
        """
        found = self.layout(tensor)
        (view,) = found.views
        joined = found.side_by_side and (found.outer, found.inner) == (1, size)
        return view if joined and (view.row.fixed, view.row.each) == (size, 0) else None

    def rows(self, tensor: Twins, size: int) -> Place:
        """Return where a tensor is stored, as contiguous rows of `size` numbers. If the rows of the
        tensor are not contiguous, write an instruction that copies the tensor first. Raises Unfit
        if the tensor does not have `size` numbers per row.
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
        """Return where an instruction must write a result that consists of contiguous rows of
        `size` numbers. Raises Unfit if `tensor` does not consist of contiguous rows of this size.
        """
        if not (view := self.whole(tensor, size)):
            raise Unfit
        return Place(storage_of(tensor[0]), view)
