"""A weight of 8 or 4 bits that takes the place of a plain weight. A network that uses such a weight
computes with the numbers that its codes stand for. These numbers are computed only when an
operation needs them, and only a part at a time where that is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn import functional

from tandem.engine.forward.groups import Groups

NUMBERS_AT_ONCE = 1 << 22  # most numbers that are computed at a time, which take 16 MiB


class Part(Protocol):
    """The outputs of a weight that are stored in the same way."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of outputs and inputs."""

    @property
    def device(self) -> torch.device:
        """The device that the outputs are on."""

    def numbers(self, chosen: slice | torch.Tensor) -> torch.Tensor:
        """Return the weights of the chosen outputs as plain numbers, [chosen, in] float32."""


@dataclass(frozen=True)
class StoredGroups:
    """Outputs in the form in which a file stores them. `read` converts the tensors `stored`, [out,
    ...], to `Groups`.
    """

    stored: tuple[torch.Tensor, ...]
    inputs: int
    read: Callable[..., Groups]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of outputs and inputs."""
        return len(self.stored[0]), self.inputs

    @property
    def device(self) -> torch.device:
        """The device that the stored tensors are on."""
        return self.stored[0].device

    def groups(self, chosen: slice | torch.Tensor) -> Groups:
        """Return the groups of the chosen outputs."""
        return self.read(*(each[chosen] for each in self.stored))

    def numbers(self, chosen: slice | torch.Tensor) -> torch.Tensor:
        """Return the weights of the chosen outputs as plain numbers, [chosen, in] float32."""
        return self.groups(chosen).numbers()


@dataclass(frozen=True)
class PlainNumbers:
    """Outputs that are stored as plain numbers, beside outputs that are stored as codes."""

    weight: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of outputs and inputs."""
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def device(self) -> torch.device:
        """The device that the numbers are on."""
        return self.weight.device

    def numbers(self, chosen: slice | torch.Tensor) -> torch.Tensor:
        """Return the weights of the chosen outputs as plain numbers, [chosen, in] float32."""
        return self.weight[chosen].float()


class GroupedWeight(torch.Tensor):
    """A weight [out, in] or [layers, out, in] that is stored in one part or several. The outputs of
    the parts follow each other. If there are several layers, one part has all their outputs.
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
        """Run a function on the weight. PyTorch calls this method instead of the function."""
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
        """Run an operation on the weight's numbers. PyTorch calls this method instead of the
        operation. An alias of the whole weight stays a weight of codes, and so does a copy on
        another device.
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
    """Return the weights of the chosen outputs as plain numbers, [chosen, in] of the weight's
    dtype.
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
    assert isinstance(part, PlainNumbers), "panels stay on the device that they were made for"
    return PlainNumbers(part.weight.to(device))


def spelled_out(weight: GroupedWeight) -> torch.Tensor:
    """Return a whole weight as plain numbers, in its shape and dtype."""
    outputs = sum(part.shape[0] for part in weight.parts)
    return numbers_of(weight, slice(0, outputs)).view(weight.shape)


def _linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply rows with a weight in float32, whatever the dtype of the rows."""
    assert isinstance(weight, GroupedWeight), "other weights are not multiplied here"
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
    """Return two parts as one if they are stored in the same way. Return None otherwise."""
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
