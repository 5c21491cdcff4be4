"""Rules that translate calls into instructions. Each rule handles one kind of call. A rule leaves a
call unchanged if the rule does not support the form of the call's arguments.

An instruction computes each number exactly as the call does: with the same kernel, or with the same
rounding as PyTorch's operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from tandem.engine.cache.pool import KVPool
from tandem.engine.forward import attention
from tandem.engine.forward.cpu.kernels import ELEMENT_TYPES
from tandem.engine.forward.cpu.panels import PanelLinear
from tandem.engine.forward.gated import GatedMLP
from tandem.engine.forward.norm import RMSNorm
from tandem.engine.program.instructions import Attend, Linear, Operation, Place, Written
from tandem.engine.program.layout import Counts, Twins, View
from tandem.engine.program.tape import Call
from tandem.engine.program.writer import Unfit, Writer, both, storage_of

Rule = Callable[..., None]

aten = torch.ops.aten
TWO = {
    aten.add.Tensor: Operation.ADD,
    aten.sub.Tensor: Operation.SUBTRACT,
    aten.mul.Tensor: Operation.MULTIPLY,
}


class Rules(Writer):
    """Translates calls into instructions that use a given pool of keys and values, for sessions of
    at most `context` tokens.
    """

    def __init__(self, counts: Counts, pool: KVPool, context: int) -> None:
        super().__init__(counts)
        self._pool = pool
        self._context = context
        self._of_layers: dict[type, Rule] = {
            PanelLinear: self._linear,
            RMSNorm: self._norm,
            GatedMLP: self._gated,
        }
        self._of_functions: dict[Any, Rule] = {
            attention.attention: self._attend,
            aten.neg.default: self._negate,
            aten.cat.default: self._cat,
            aten.stack.default: self._stack,
            aten.clone.default: self._copied,
            aten._to_copy.default: self._copied,
        }

    def translate(self, one: Call, two: Call) -> list[Written] | None:
        """Return the instructions that replace a call, or None if no rule supports the call. `one`
        and `two` are the recordings of the call in both passes.
        """
        function, self.written = one.function, []
        rule = self._of_functions.get(function)
        if function in TWO:
            rule = partial(self._two, TWO[function])
        elif type(function) in self._of_layers:
            rule = partial(self._of_layers[type(function)], function)
        if rule is None:
            return None
        twins = [
            pair if isinstance(pair[0], torch.Tensor) else pair[0]
            for pair in zip(one.given, two.given, strict=True)
        ]
        given, named = tree_unflatten(twins, one.spec)
        try:
            rule(*given, made=(one.made[0], two.made[0]), **named)
        except Unfit:
            return None
        return self.written

    def _two(
        self, operation: Operation, one: Any, other: Any, alpha: float = 1, *, made: Twins
    ) -> None:
        """Write an instruction for an operation on two tensors, or on a tensor and a number."""
        tensors = [self._widened(each, made) for each in (one, other) if isinstance(each, tuple)]
        if not isinstance(one, tuple) or alpha != 1:
            raise Unfit
        given = [made, *(expanded(each, made) for each in tensors)]
        number = 0.0 if len(tensors) == 2 else float(other)
        self.write(operation, self.layout(*given), given, number=number)

    def _widened(self, tensor: Twins, made: Twins) -> Twins:
        """Return a tensor in the dtype of the result: the given tensor, or a copy if its dtype
        differs. Raises Unfit if the tensor would have to be converted to another dtype than
        float32.
        """
        if tensor[0].dtype == made[0].dtype:
            return tensor
        if made[0].dtype != torch.float32:
            raise Unfit
        copied = self.new(tensor, torch.float32)
        self.copy(tensor, copied)
        return copied

    def _negate(self, one: Twins, *, made: Twins) -> None:
        if one[0].dtype != made[0].dtype:
            raise Unfit
        self.write(Operation.NEGATE, self.layout(made, one), [made, one])

    def _copied(self, one: Twins, *, made: Twins, **_: Any) -> None:
        self.copy(one, made)

    def _cat(self, parts: Sequence[Twins], dim: int = 0, *, made: Twins) -> None:
        sizes = [part[0].shape[dim] for part in parts]
        targets = zip(*(each.split(sizes, dim) for each in made), strict=True)
        for part, target in zip(parts, targets, strict=True):
            self.copy(part, target)

    def _stack(self, parts: Sequence[Twins], dim: int = 0, *, made: Twins) -> None:
        targets = zip(*(each.unbind(dim) for each in made), strict=True)
        for part, target in zip(parts, targets, strict=True):
            self.copy(part, target)

    def _linear(
        self, layer: PanelLinear, rows: Twins, ends: Twins | None = None, *, made: Twins
    ) -> None:
        if rows[0].dtype != layer.weight.dtype or ends is not None:
            raise Unfit
        given, written = (
            self.rows(rows, layer.in_features),
            self.result(made, layer.out_features),
        )
        kind, result_kind = (ELEMENT_TYPES[each[0].dtype] for each in (rows, made))
        self.kept.append(layer)
        before = 0
        for part in layer.parts:
            memory, weight_kind, layers, outputs, grouping = part.weights
            if layers > 1:
                raise Unfit
            bias = None if part.bias is None else part.bias.data_ptr()
            how = Linear(
                *(memory.data_ptr(), grouping, bias, layer.in_features, outputs),
                *(memory.numel(), layer.out_features, weight_kind, result_kind),
            )
            view = View.from_buffer_copy(written.view)
            view.offset.fixed += before * made[0].element_size()
            place = Place(written.storage, view)
            self.written.append(
                Written(Operation.LINEAR, kind, 1, outputs, place, [given], layer=self.keep(how))
            )
            before += outputs

    def _norm(self, layer: RMSNorm, rows: Twins, *others: Any, made: Twins, **options: Any) -> None:
        if others or options or not layer.fits(rows[0]):
            raise Unfit
        found = self.layout(made, rows, inner=len(layer.scale))
        if not found.side_by_side:
            raise Unfit
        given = {"number": layer.epsilon, "layer": self.keep(layer.scale)}
        self.write(Operation.NORM, found, [made, rows], **given)

    def _gated(self, layer: GatedMLP, rows: Twins, *, made: Twins) -> None:
        inner, outer = layer.inner, layer.outer
        if not (isinstance(inner, PanelLinear) and isinstance(outer, PanelLinear)):
            raise Unfit
        wide = self.of_rows(rows[0].dtype, inner.out_features)
        gated = self.of_rows(rows[0].dtype, outer.in_features)
        self._linear(inner, rows, made=wide)
        places = (
            self.result(gated, outer.in_features),
            [self.result(wide, inner.out_features)],
        )
        kind, size = ELEMENT_TYPES[rows[0].dtype], outer.in_features
        gate = Written(Operation.GATE, kind, 1, size, *places, source_kind=layer.activation)
        self.written.append(gate)
        self._linear(outer, gated, made=made)

    def _attend(
        self, module: Any, query: Twins, key: Twins, value: Twins, *_: Any, made: Twins, **how: Any
    ) -> None:
        pool, layer = self._pool, module.layer_idx
        stores = pool.keys[layer], pool.values[layer]
        self.kept += stores
        if any(given[0].dtype != stores[0].dtype for given in (query, key, value)):
            raise Unfit
        kind = ELEMENT_TYPES[query[0].dtype]
        for store, given in zip(stores, (key, value), strict=True):
            target = self.of_rows(store.dtype, *store.shape[1:])
            found = self.layout(target, both(given, _by_rows))
            there, view = found.views
            places = Place(None, there), [Place(storage_of(given[0]), view)]
            size = found.outer, found.inner
            self.written.append(
                Written(
                    *(Operation.STORE, kind, *size, *places),
                    source_kind=kind,
                    layer=store.data_ptr(),
                )
            )
        heads, width = query[0].shape[1], query[0].shape[3]
        asked = self.rows(both(query, _by_rows), heads * width)
        result = self.result(made, heads * stores[1].shape[2])
        address = self.keep(self._attention(stores, heads, how))
        self.written.append(
            Written(Operation.ATTEND, kind, heads, width, result, [asked], layer=address)
        )

    def _attention(
        self, stores: tuple[torch.Tensor, torch.Tensor], heads: int, how: dict[str, Any]
    ) -> Attend:
        sinks = how.get("s_aux")
        options = attention.options_of(self._context, **how)
        (keys, values), address = stores, None
        if sinks is not None:
            address = self.keep(sinks[0].float().contiguous())
        size = keys.shape[2]
        return Attend(
            *(keys.data_ptr(), values.data_ptr(), address),
            *(heads, *keys.shape[1:], values.shape[2], options.window or 0),
            size**-0.5 if options.scaling is None else options.scaling,
            options.softcap or 0.0,
        )


def _by_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return heads [1, heads, rows, size] as [rows, heads, size]."""
    return tensor[0].transpose(0, 1)


def expanded(tensor: Twins, like: Twins) -> Twins:
    """Return a tensor broadcast to the shape of `like`, as a view."""
    return tensor[0].expand(like[0].shape), tensor[1].expand(like[1].shape)
