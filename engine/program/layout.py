"""Where the numbers of a tensor lie, as a function of how many rows there are: known from the same
tensor of two passes with different numbers of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

Twins: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # the same tensor of both passes


class Extent(ctypes.Structure):
    """A number that is fixed + each * rows, as in program.cpp."""

    _fields_ = (("fixed", ctypes.c_int64), ("each", ctypes.c_int64))


class View(ctypes.Structure):
    """As in program.cpp: an offset in bytes, and strides in numbers."""

    _fields_ = (
        ("source", ctypes.c_int64),
        *((name, Extent) for name in ("offset", "row", "outer", "inner")),
    )


class Counts:
    """How many rows the two passes have, and for how many of them logits are wanted."""

    def __init__(self, rows: tuple[int, int], wanted: tuple[int, int]) -> None:
        self.rows, self._wanted = rows, wanted

    def extent(self, one: int, two: int) -> Extent | None:
        """A number that was `one` in the first pass and `two` in the second; None if it does not
        depend on rows like that.
        """
        each, rest = divmod(two - one, self.rows[1] - self.rows[0])
        return None if rest else Extent(one - each * self.rows[0], each)

    def by_wanted(self, one: int, two: int) -> Extent | None:
        """The same of the rows whose logits are wanted."""
        each, rest = divmod(two - one, self._wanted[1] - self._wanted[0])
        return None if rest else Extent(one - each * self._wanted[0], each)


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensors of one shape, as `outer` x `inner` numbers of each row, and where those are in each
    of them.
    """

    outer: int
    inner: int
    views: Sequence[View]

    @property
    def side_by_side(self) -> bool:
        """Whether the inner numbers are so in all of them."""
        return all((view.inner.fixed, view.inner.each) == (1, 0) for view in self.views)


def layout_of(counts: Counts, tensors: Sequence[Twins], inner: int | None = None) -> Layout | None:
    """Tensors of which one dimension counts rows, and all other numbers are those of a row; with so
    many `inner` ones where that is given. None if they are of another form.
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
