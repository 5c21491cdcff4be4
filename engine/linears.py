"""The linear layers of a model, replaced by those that the processor is best at, joined where they
can be.

Layers that are given the same rows, like those of queries, keys and values, are multiplied as one:
a call costs as much as many rows.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from engine.cpu import panels
from engine.packed import PackedLinear, can_pack
from protos.errors import Unusable

Layer = Callable[[torch.Tensor, torch.Tensor | None], nn.Module]  # from weight and bias
Groups = list[list[str]]
FULL, INT8 = "full", "int8"  # weights as they are, or rounded


def suited(dtype: torch.dtype, device: torch.device, weights: str) -> Layer | None:
    """The kind of layers to use instead of the network's own, if there is a better one; raises
    Unusable if there is none with such weights.
    """
    if panels.problem(dtype, device) is None:
        return panels.PanelLinear if weights == FULL else panels.RoundedLinear
    if weights == FULL:
        return PackedLinear if can_pack(dtype, device) else None
    if can_round(dtype, device):
        return Int8Linear
    raise Unusable("weights int8 need dtype float32 on a CPU with fbgemm kernels")


def kernels_of(network: nn.Module) -> str:
    """What multiplies the weights of a network."""
    names = {getattr(layer, "kernels", "") for layer in network.modules()} - {""}
    return ", ".join(sorted(names)) or "torch"


class Joined:
    """Several linear layers that are given the same rows, one right after the other, as one. The
    rows are known by the tensor: nobody may change it in between.
    """

    def __init__(self, layers: Sequence[nn.Linear], kind: Layer) -> None:
        biases: list[torch.Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        weights: list[torch.Tensor] = [layer.weight for layer in layers]
        self.whole = kind(torch.cat(weights), torch.cat(biases) if biases else None)
        self._sizes = [layer.out_features for layer in layers]
        self._rows: torch.Tensor | None = None
        self._outputs: Sequence[torch.Tensor] = ()

    def output(self, number: int, rows: torch.Tensor) -> torch.Tensor:
        """What one of the layers makes of the rows; all are computed when the first is asked, and
        forgotten when the last is.
        """
        if rows is not self._rows:
            self._rows, self._outputs = rows, self.whole(rows).split(self._sizes, -1)
        output = self._outputs[number]
        if number == len(self._sizes) - 1:
            self._rows, self._outputs = None, ()
        return output


class JoinedLinear(nn.Module):
    """One of the layers that are joined."""

    def __init__(self, joined: Joined, number: int, layer: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = layer.out_features, layer.in_features
        self.bias, self.kernels = layer.bias, joined.whole.kernels
        self.weight = layer.weight.new_empty(0)  # some models ask for its dtype
        self._joined, self._number = joined, number

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Called by the model."""
        return self._joined.output(self._number, rows)


class Int8Linear(nn.Module):
    """An approximate linear layer for drafters: 8-bit weights, one scale per output, and inputs
    rounded to 8 bits by one scale for all rows. So rows depend on each other: never for a verifier.
    """

    kernels = "fbgemm"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = weight.new_empty(0)  # some models ask for its dtype
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-8).double()
        offsets = torch.zeros_like(scales, dtype=torch.long)
        torch.backends.quantized.engine = "fbgemm"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # quantised tensors move out of torch one day
            rounded = torch.quantize_per_channel(weight, scales, offsets, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(rounded, bias)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Called by the model."""
        out: torch.Tensor = torch.ops.quantized.linear_dynamic(rows, self.packed)
        return out


def can_round(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this processor has kernels for 8-bit weights."""
    supported = "fbgemm" in torch.backends.quantized.supported_engines
    return device.type == "cpu" and dtype == torch.float32 and supported


@contextmanager
def watching(network: nn.Module) -> Iterator[Groups]:
    """Notes during a pass which linear layers are given the same tensor, one right after the other:
    groups of names, one for every call that is given another tensor, or one that has changed.
    """
    groups: Groups = []
    latest: list[Any] = [None, None]  # a tensor, held so that no other can pass for it; its copy

    def note(name: str, given: tuple[Any, ...]) -> None:
        if given and given[0] is latest[0] and torch.equal(*latest):
            groups[-1].append(name)
        else:
            groups.append([name])
            latest[:] = (given[0], given[0].clone()) if given else (None, None)

    hooks = [
        layer.register_forward_pre_hook(lambda _, given, name=name: note(name, given))
        for name, layer in network.named_modules()
        if type(layer) is nn.Linear
    ]
    try:
        yield groups
    finally:
        latest.clear()
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def join(network: nn.Module, groups: Groups, kind: Layer) -> None:
    """Replace groups of linear layers by joined ones, where each was called once and all or none
    have a bias; one group at a time, like `replace`.
    """
    calls = Counter(name for group in groups for name in group)
    for group in groups:
        layers: Any = [network.get_submodule(name) for name in group]
        alike = len({layer.bias is None for layer in layers}) == 1
        if len(group) > 1 and alike and all(calls[name] == 1 for name in group):
            joined = Joined(layers, kind)
            for number, name in enumerate(group):
                network.set_submodule(name, JoinedLinear(joined, number, layers[number]))


@torch.inference_mode()
def replace(network: nn.Module, layer: Layer) -> None:
    """Replace every linear layer of a network by another kind, one at a time, so that only one is
    held more than once. One whose weight is tied to an embedding gets a copy of it.
    """
    parents = [parent for parent in network.modules() if type(parent) not in (nn.Linear, Conv1D)]
    for parent in parents:
        for name in [name for name, _ in parent.named_children()]:
            child = getattr(parent, name)
            if type(child) is nn.Linear:
                setattr(parent, name, layer(child.weight, child.bias))
            elif type(child) is Conv1D:
                setattr(parent, name, layer(child.weight.t(), child.bias))
            del child  # or it would live until the next one is made
