"""A quantized weight of 8 or 4 bits that can be used like a plain weight tensor. Operations on the
weight compute with its dequantized numbers. The weight is dequantized only when an operation needs
its numbers and, where possible, one part at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn import functional

from tandem.engine.forward.groups import Groups

NUMBERS_AT_ONCE = 1 << 22  # maximum number of weights that are dequantized at a time (16 MiB)


class Part(Protocol):
    """A part of a weight matrix: the rows (one per output) that are stored in one format."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of outputs, and the number of inputs."""

    @property
    def device(self) -> torch.device:
        """The device on which the outputs are stored."""

    def numbers(self, chosen: slice | torch.Tensor) -> torch.Tensor:
        """Return the weights of the chosen outputs, [chosen, in], as float32 numbers."""


@dataclass(frozen=True)
class StoredGroups:
    """Quantized rows of a weight matrix (one per output), in the format of the model file. The
    function `read` converts the stored tensors, [out, ...], to `Groups`.
    """

    stored: tuple[torch.Tensor, ...]
    inputs: int
    read: Callable[..., Groups]

    @property
    def shape(self) -> tuple[int, int]:
        """The number of outputs, and the number of inputs."""
        return len(self.stored[0]), self.inputs

    @property
    def device(self) -> torch.device:
        """The device on which the quantized outputs are stored."""
        return self.stored[0].device

    def groups(self, chosen: slice | torch.Tensor) -> Groups:
        """Return the quantized weights of the chosen outputs as `Groups`."""
        return self.read(*(each[chosen] for each in self.stored))

    def numbers(self, chosen: slice | torch.Tensor) -> torch.Tensor:
        """Return the dequantized weights of the chosen outputs, [chosen, in] float32."""
        return self.groups(chosen).numbers()


@dataclass(frozen=True)
class PlainNumbers:
    """The rows (one per output) of a partly quantized weight matrix that are not quantized."""

    weight: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """The number of outputs, and the number of inputs."""
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def device(self) -> torch.device:
        """The device on which the weights are stored."""
        return self.weight.device

    def numbers(self, chosen: slice | torch.Tensor) -> torch.Tensor:
        """Return the weights of the chosen outputs, [chosen, in], as float32 numbers."""
        return self.weight[chosen].float()


class GroupedWeight(torch.Tensor):
    """A weight [out, in] or [layers, out, in] that consists of one or more parts, each with its own
    storage format. The outputs of the weight are those of the first part, followed by those of the
    next part, and so on. A weight of several layers has only one part.
    """

    parts: list[Part]

    @staticmethod
    def __new__(
        cls, parts: Sequence[Part], dtype: torch.dtype, layers: int | None = None
    ) -> GroupedWeight:
        outputs, inputs = sum(part.shape[0] for part in parts), parts[0].shape[1]
        shape = (outputs, inputs) if layers is None else (layers, outputs // layers, inputs)
        made: GroupedWeight = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=parts[0].device
        )
        made.parts = list(parts)
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        """Call a PyTorch function on the weight, or this module's own implementation of it if there
        is one. PyTorch calls this method in place of every function on the weight.
        """
        own = OWN.get(func)
        if own is None:
            with torch._C.DisableTorchFunctionSubclass():
                result: torch.Tensor = func(*args, **(kwargs or {}))
                return result
        return own(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a PyTorch operation on the dequantized weight. PyTorch calls this method in place of
        every operation on the weight. If the operation makes an alias of the whole weight or copies
        it to another device, the result stays quantized.
        """
        kwargs = kwargs or {}
        layers = args[0].shape[0] if isinstance(args[0], cls) and args[0].dim() == 3 else None
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].parts, args[0].dtype, layers)
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") == args[0].dtype:
            device = kwargs.get("device") or args[0].device
            return cls([_on(device, part) for part in args[0].parts], args[0].dtype, layers)
        if func is torch.ops.aten.select.int and layers is not None and args[1] == 0:
            outputs = args[0].shape[1]
            return numbers_of(args[0], slice(args[2] * outputs, (args[2] + 1) * outputs))
        flat, build = torch.utils._pytree.tree_flatten((args, kwargs))
        plain = [spelled_out(each) if isinstance(each, cls) else each for each in flat]
        given, named = torch.utils._pytree.tree_unflatten(plain, build)
        return func(*given, **named)


def numbers_of(weight: GroupedWeight, chosen: slice) -> torch.Tensor:
    """Return the dequantized weights of the chosen outputs, [chosen, in], in the dtype of the
    weight.
    """
    found, before = [], 0
    for part in weight.parts:
        outputs = part.shape[0]
        start, stop = max(chosen.start - before, 0), min(chosen.stop - before, outputs)
        if start < stop:
            found.append(part.numbers(slice(start, stop)))
        before += outputs
    return torch.cat(found).to(weight.dtype)


def _on(device: torch.device, part: Part) -> Part:
    if isinstance(part, StoredGroups):
        return replace(part, stored=tuple(each.to(device) for each in part.stored))
    assert isinstance(part, PlainNumbers), "panels cannot be copied to another device"
    return PlainNumbers(part.weight.to(device))


def spelled_out(weight: GroupedWeight) -> torch.Tensor:
    """Dequantize a whole weight, and return it in its own shape and dtype."""
    outputs = sum(part.shape[0] for part in weight.parts)
    return numbers_of(weight, slice(0, outputs)).view(weight.shape)


def _linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply rows by a quantized weight in float32, whatever the dtype of the rows."""
    assert isinstance(weight, GroupedWeight), "the weight must be a GroupedWeight"
    given, found = rows.float(), []
    for part in weight.parts:
        step = max(1, NUMBERS_AT_ONCE // part.shape[1])
        for start in range(0, part.shape[0], step):
            numbers = part.numbers(slice(start, min(start + step, part.shape[0])))
            found.append(functional.linear(given, numbers))
    result = torch.cat(found, -1)
    return (result if bias is None else result + bias.float()).to(rows.dtype)


def _embedding(ids: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    assert isinstance(weight, GroupedWeight) and len(weight.parts) == 1, "embeddings have one part"
    found = weight.parts[0].numbers(ids.flatten())
    return found.to(weight.dtype).view(*ids.shape, weight.shape[1])


def _cat(tensors: Iterable[torch.Tensor], dim: int = 0) -> torch.Tensor:
    given = list(tensors)
    assert dim == 0 and all(each.dim() == 2 for each in given), "only outputs are joined"
    parts = list[Part]()
    for each in given:
        for part in each.parts if isinstance(each, GroupedWeight) else [PlainNumbers(each)]:
            joined = parts and _joined(parts[-1], part)
            parts[-1:] = [joined] if joined else [*parts[-1:], part]
    return GroupedWeight(parts, given[0].dtype)


def _joined(one: Part, other: Part) -> Part | None:
    """Join two parts if they are stored in the same format, and return the joined part; otherwise
    return None.
    """
    if not (isinstance(one, StoredGroups) and isinstance(other, StoredGroups)):
        return None
    alike = ([(each.shape[1:], each.dtype) for each in part.stored] for part in (one, other))
    if one.read != other.read or one.inputs != other.inputs or next(alike) != next(alike):
        return None
    stored = tuple(torch.cat(pair) for pair in zip(one.stored, other.stored, strict=True))
    return StoredGroups(stored, one.inputs, one.read)


OWN: dict[Any, Callable[..., torch.Tensor]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
    torch.cat: _cat,
}
