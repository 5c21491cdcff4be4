"""Describe the memory layout of a tensor as a function of the number of rows. The layout is found
by comparing corresponding tensors of two passes with different numbers of rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

Twins: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # corresponding tensors of two passes


class Extent(ctypes.Structure):
    """A linear function of the number of rows, `fixed` + `each` * rows. The structure has the same
    fields as in program.cpp.
    """

    _fields_ = (("fixed", ctypes.c_int64), ("each", ctypes.c_int64))


class View(ctypes.Structure):
    """Describes where the numbers of a tensor are stored in a block of memory, with the same fields
    as in program.cpp. The offset is given in bytes, and the strides are given in elements.
    """

    _fields_ = (
        ("source", ctypes.c_int64),
        *((name, Extent) for name in ("offset", "row", "outer", "inner")),
    )


class Counts:
    """For each of two passes, the number of rows and the number of rows that give logits."""

    def __init__(self, rows: tuple[int, int], num_logits: tuple[int, int]) -> None:
        self.rows = rows
        self._num_logits = num_logits

    def extent(self, one: int, two: int) -> Extent | None:
        """Return the linear function of the number of rows that equals `one` in the first pass and
        `two` in the second pass. Return None if the slope of this function is not a whole number.
        """
        each, remainder = divmod(two - one, self.rows[1] - self.rows[0])
        return None if remainder else Extent(one - each * self.rows[0], each)

    def by_num_logits(self, one: int, two: int) -> Extent | None:
        """Return a linear function of the number of rows that give logits. The function equals
        `one` in the first pass and `two` in the second pass. Return None if the slope of this
        function is not a whole number.
        """
        each, remainder = divmod(two - one, self._num_logits[1] - self._num_logits[0])
        return None if remainder else Extent(one - each * self._num_logits[0], each)


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory layout of several tensors of the same shape. Each row has `outer` x `inner`
    numbers, and `views` describes for each tensor where the numbers of a row are stored.
    """

    outer: int
    inner: int
    views: Sequence[View]

    @property
    def side_by_side(self) -> bool:
        """Whether the inner numbers of a row are adjacent in the memory of all tensors."""
        return all((view.inner.fixed, view.inner.each) == (1, 0) for view in self.views)


def layout_of(counts: Counts, tensors: Sequence[Twins], inner: int | None = None) -> Layout | None:
    """Return the common layout of tensors in which one dimension counts rows and all other
    dimensions belong to a row. If `inner` is given, it must equal the `inner` size of the layout.
    Return None if the tensors have no such layout.
    """
    one, two = (tensors[0][each].shape for each in (0, 1))
    differing = [dim for dim in range(len(one)) if one[dim] != two[dim]]
    if len(one) != len(two) or [(one[dim], two[dim]) for dim in differing] != [counts.rows]:
        return None
    sizes = [1]
    strides = [[(1, 1)] for _ in tensors]
    for dim in reversed(range(len(one))):
        if dim in differing or one[dim] == 1:
            continue
        steps = [(first.stride(dim), second.stride(dim)) for first, second in tensors]
        full = sizes[-1] == inner
        if sizes == [1]:
            sizes[0] = one[dim]
            strides = [[step] for step in steps]
        elif not full and all(
            step == tuple(sizes[-1] * each for each in known[-1])
            for step, known in zip(steps, strides, strict=True)
        ):
            sizes[-1] *= one[dim]
        else:
            sizes.append(one[dim])
            for known, step in zip(strides, steps, strict=True):
                known.append(step)
    if len(sizes) > 2 or (inner is not None and sizes[0] != inner):
        return None
    views = []
    for (first, second), known in zip(tensors, strides, strict=True):
        pairs = [
            tuple(each.storage_offset() * each.element_size() for each in (first, second)),
            (first.stride(differing[0]), second.stride(differing[0])),
            known[1] if len(known) == 2 else (0, 0),
            known[0],
        ]
        extents = [counts.extent(*map(int, pair)) for pair in pairs]
        if any(extent is None for extent in extents):
            return None
        views.append(View(-1, *extents))
    return Layout(sizes[1] if len(sizes) == 2 else 1, sizes[0], views)
