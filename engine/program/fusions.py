"""Fuse calls of a pass, for devices on which every call costs a kernel launch. An addition and the
norm of its sum become one call. Rotary positions become a part of the attention call, which applies
them while it stores the keys and values.

A fused call must compute the same bits as the calls that it replaces; `proof` checks this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from tandem.engine.forward import attention, operations
from tandem.engine.forward.norm import RMSNorm
from tandem.engine.program.program import Plain, Value
from tandem.engine.program.tape import Unrecordable

aten = torch.ops.aten


class Turned(NamedTuple):
    """The inputs of a rotary embedding, as indices of values: the unrotated heads, the cosines and
    the sines.
    """

    given: int
    cos: int
    sin: int


class Calls:
    """The calls of a pass, in the order in which they run. `tensors` maps the index of each value
    of the pass to its tensor. `logits` is the index of the value that contains the logits.
    """

    def __init__(
        self, calls: Sequence[Plain], tensors: Mapping[int, torch.Tensor], logits: int
    ) -> None:
        self._calls = list(calls)
        self._tensors = tensors
        self._logits = logits
        self._all = self._launches()
        self._index()

    def fused(self) -> list[Plain]:
        """Fuse calls where possible, and return the calls that are left. Raises Unrecordable if a
        call changes a tensor in place.
        """
        if any(_changes(call.function) for call in self._calls):
            raise Unrecordable("the network changes tensors in place")
        self._calls = [self._rotated(call) for call in self._calls]
        self._drop()
        found = list[Plain]()
        gone = set[int]()
        for call in self._calls:
            if id(call) in gone:
                continue
            norm = self._norm_of(call)
            if norm is None:
                found.append(call)
            else:
                gone.add(id(norm))
                found.append(self._added(call, norm))
        self._calls = found
        return found

    @property
    def counts(self) -> tuple[int, int]:
        """The number of kernel launches that fusing saves, and the number of launches without
        fusing.
        """
        return self._all - self._launches(), self._all

    def _launches(self) -> int:
        return sum(not _is_view(call.function) for call in self._calls)

    def _index(self) -> None:
        """Record which call makes each value, and how many times calls read each value."""
        self._makers = {
            number: call for call in self._calls for number in call.made if number is not None
        }
        self._users = Counter(number for call in self._calls for number in call.reads)

    def _drop(self) -> None:
        """Remove the calls that do not contribute to the logits."""
        needed, kept = {self._logits}, list[Plain]()
        for call in reversed(self._calls):
            if needed & set(call.made):
                needed |= set(call.reads)
                kept.append(call)
        self._calls = kept[::-1]
        self._index()

    def _norm_of(self, add: Plain) -> Plain | None:
        """Given the call `add` that computes a sum, return the call that computes the norm of this
        sum. Return None if `add` does not add two contiguous tensors of the same shape and dtype,
        or if no norm reads the sum.
        """
        if add.function is not aten.add.Tensor or add.shape[1] or len(add.reads) != 2:
            return None
        parts = [self._tensors[number] for number in (*add.reads, *self._made(add))]
        alike = len({(each.shape, each.dtype) for each in parts}) == 1
        if not alike or not all(each.is_contiguous() for each in parts):
            return None
        (total,) = self._made(add)
        for call in self._calls:
            if isinstance(call.function, RMSNorm) and list(call.reads) == [total]:
                return call if len(call.given) == 1 and call.function.fits(parts[-1]) else None
        return None

    def _added(self, add: Plain, norm: Plain) -> Plain:
        """Return a fused call that computes both a sum and the norm of this sum."""
        layer: RMSNorm = norm.function  # type: ignore[assignment]
        function = partial(_add_norm, layer)
        return replace(add, function=function, made=[*self._made(add), *self._made(norm)])

    def _rotated(self, attend: Plain) -> Plain:
        """Return an attention call that applies the rotary positions of its queries and keys
        itself. If this is impossible, for example because another call reads the rotated keys,
        return the given call unchanged.
        """
        if attend.function is not attention.attention:
            return attend
        module, query, key, value, *others = (attend.given[index] for index in attend.shape[0])
        if not all(isinstance(each, Value) for each in (query, key, value)):
            return attend
        turned = [self._turned(each.number) for each in (query, key)]
        if None in turned or turned[0][1:] != turned[1][1:]:  # type: ignore[index]
            return attend
        angles = [Value(number) for number in turned[0][1:]]  # type: ignore[index]
        values = [Value(each.given) for each in turned]  # type: ignore[union-attr]
        if self._tensors[value.number].stride(-1) != 1:
            return attend
        given = [module, *values, value, *angles, *others]
        named = {name: len(given) + index for index, name in enumerate(attend.shape[1])}
        given += [attend.given[index] for index in attend.shape[1].values()]
        positional = range(len(given) - len(named))
        return replace(
            attend,
            function=attention.attention_of_turned,
            given=given,
            shape=(list(positional), named),
        )

    def _turned(self, number: int) -> Turned | None:
        """Return the heads and angles from which a value with rotary positions was computed. Such a
        value is x cos + cat(-second half of x, first half of x) sin, for heads x [1, heads, rows,
        size]. Return None if the value is not a result of rotary positions.
        """
        whole = self._made_by(number, aten.cat.default)
        if whole and len(whole.reads) == 2 and not self._tensors[whole.reads[1]].numel():
            return self._turned(whole.reads[0]) if self._users[number] == 1 else None
        add = self._made_by(number, aten.add.Tensor)
        if add is None or len(add.reads) != 2 or add.shape[1]:
            return None
        products = [self._made_by(each, aten.mul.Tensor) for each in add.reads]
        if None in products or any(len(each.reads) != 2 for each in products):  # type: ignore[union-attr]
            return None
        (given, cos), (crossed, sin) = (each.reads for each in products)  # type: ignore[union-attr]
        cat = self._made_by(crossed, aten.cat.default)
        if cat is None or len(cat.reads) != 2:
            return None
        negated, first = cat.reads
        negation = self._made_by(negated, aten.neg.default)
        if negation is None:
            return None
        halves = [self._makers.get(each) for each in (first, negation.reads[0])]
        found = Turned(given, cos, sin)
        if not self._fits(found, number) or any(
            half is None or not _is_view(half.function) or list(half.reads) != [given]
            for half in halves
        ):
            return None
        x = self._tensors[given]
        expected = x.chunk(2, -1)
        parts = self._tensors[first], self._tensors[negation.reads[0]]
        same = all(
            (one.shape, one.stride(), one.data_ptr()) == (two.shape, two.stride(), two.data_ptr())
            for one, two in zip(parts, expected, strict=True)
        )
        return found if same and self._tensors[crossed].shape == x.shape else None

    def _fits(self, turned: Turned, number: int) -> bool:
        """Whether rotary positions can be fused: the kernel supports the heads and angles, and only
        one call reads the rotated heads.
        """
        x, cos, sin = (self._tensors[each] for each in turned)
        alone = self._users[number] == 1
        last = all(each.stride(-1) == 1 for each in (x, cos, sin))
        angles = cos.shape == sin.shape == (1, 1, *x.shape[2:]) and cos.stride() == sin.stride()
        dtypes = {each.dtype for each in (x, cos, sin, self._tensors[number])}
        return alone and last and angles and len(dtypes) == 1 and x.shape[-1] % 2 == 0

    def _made_by(self, number: int, function: Callable[..., Any]) -> Plain | None:
        """Return the call that made a value, or None if that call is not a call of `function`."""
        call = self._makers.get(number)
        return call if call is not None and call.function is function else None

    def _made(self, call: Plain) -> list[int]:
        return [number for number in call.made if number is not None]


def _add_norm(layer: RMSNorm, one: torch.Tensor, other: torch.Tensor) -> tuple[Any, ...]:
    return operations.add_norm(one, other, layer.scale, layer.epsilon)


def _is_view(function: Any) -> bool:
    """Whether a call needs no kernel launch because its result is a view of its input."""
    if not isinstance(function, torch._ops.OpOverload):
        return False
    returns = function._schema.returns
    return bool(returns and returns[0].alias_info and not function._schema.is_mutable)


def _changes(function: Any) -> bool:
    return isinstance(function, torch._ops.OpOverload) and function._schema.is_mutable
