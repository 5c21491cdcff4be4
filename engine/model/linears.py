"""Replace the layers of a network by the fastest layers for its device, and join linear layers
where that is possible.

Linear layers with the same input rows, such as those of queries, keys and values, are joined into
one multiplication, because the fixed cost of a call equals the cost of many rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tandem.engine.forward.cpu import panels
from tandem.engine.forward.cpu.experts import panel_experts
from tandem.engine.forward.cpu.products import multiply_by_panels
from tandem.engine.forward.gated import LinearFactory, gated_mlp
from tandem.engine.forward.grouped_weight import GroupedWeight, spelled_out
from tandem.engine.forward.library_linears import (
    PackedLinear,
    can_pack,
    cuda_linear,
    has_kernels,
)
from tandem.engine.forward.norm import rms_norm
from tandem.protos.errors import Unusable

Groups = list[list[str]]
# possible forms of the weights: as loaded, or rounded to 8 bits
FULL, INT8 = "full", "int8"


def linear_factory(dtype: torch.dtype, device: torch.device, weights: str) -> LinearFactory | None:
    """Return a factory of linear layers that are faster than a network's own linear layers; None if
    there are none. Raises Unusable if `weights` is int8 and there are no kernels for int8.
    """
    if (problem := panels.why_unsupported(dtype, device)) is None:
        return panels.PanelLinear
    if has_kernels(device):
        return cuda_linear
    if weights == INT8:
        raise Unusable(f"weights int8 need the compiled kernels: {problem}")
    return PackedLinear if can_pack(dtype, device) else None


def keeps_codes(kind: LinearFactory | None) -> bool:
    """Tell whether layers of this `kind` multiply with the codes of 8- or 4-bit weights."""
    return kind in (panels.PanelLinear, cuda_linear)


def replace_layers(network: PreTrainedModel, groups: Groups, kind: LinearFactory) -> None:
    """Replace each layer of a network for which there is a faster layer. `groups` are the names of
    linear layers with the same input rows. If the output layer becomes a PanelLinear, its logits
    stay float32 instead of being rounded to the network's dtype. Input embeddings that share the
    output layer's 8- or 4-bit weight are then looked up in that layer's panels.
    """
    tied = tied_in_groups(network)
    if kind is panels.PanelLinear:
        replace(network, lambda layer: panel_experts(layer, panels.PanelLinear))
    if keeps_codes(kind):
        replace(network, lambda layer: gated_mlp(layer, kind))
        replace(network, rms_norm)
    merge(network, groups, kind)
    if kind is cuda_linear:
        replace_codes(network)
        return
    replace(network, lambda layer: replacement(layer, kind))
    if kind is panels.PanelLinear:
        for layer in network.modules():
            multiply_by_panels(layer)
    output = network.get_output_embeddings()
    if isinstance(output, panels.PanelLinear):
        output.rounded = False
        if tied:
            share_with_embeddings(network, output)


def replace_codes(network: PreTrainedModel) -> None:
    """On a CUDA device, replace the layers whose weights are stored as codes. A CUDA graph can
    multiply with codes, but it can look up embeddings only in floating-point numbers. An
    `nn.Linear` with floating-point weights stays, because `cuda_linear` would compute the same.
    """

    def coded(layer: nn.Module) -> nn.Module | None:
        in_codes = isinstance(getattr(layer, "weight", None), GroupedWeight)
        return replacement(layer, cuda_linear) if in_codes else None

    replace(network, coded)
    for layer in network.modules():
        if isinstance(layer, nn.Embedding) and isinstance(layer.weight, GroupedWeight):
            layer.weight = nn.Parameter(spelled_out(layer.weight), requires_grad=False)


def tied_in_groups(network: PreTrainedModel) -> bool:
    """Tell whether the input and output embeddings of a network share an 8- or 4-bit weight."""
    output = network.get_output_embeddings()
    weight = getattr(output, "weight", None)
    return isinstance(weight, GroupedWeight) and weight is network.get_input_embeddings().weight


def share_with_embeddings(network: PreTrainedModel, output: panels.PanelLinear) -> None:
    """Make a network look up its input embeddings in the panels of its output layer."""
    (part,) = output.parts
    assert isinstance(part, panels.GroupedPart), "tied weights stay in groups"
    shared = GroupedWeight([part.panels], output.weight.dtype)
    network.get_input_embeddings().weight = nn.Parameter(shared, requires_grad=False)


def kernels_of(network: nn.Module) -> str:
    """Return the names of the kernels that multiply the weights of a network, e.g. `torch`."""
    names = {getattr(layer, "kernels", "") for layer in network.modules()} - {""}
    return ", ".join(sorted(names)) or "torch"


class MergedLinears(nn.Module):
    """Several linear layers joined into one. The network must call the layers with the same rows,
    one right after the other. The rows are recognised by the identity of their tensor, so the
    tensor must not be changed between the calls.
    """

    def __init__(self, layers: Sequence[nn.Linear], kind: LinearFactory) -> None:
        super().__init__()
        biases: list[torch.Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        weights: list[torch.Tensor] = [layer.weight for layer in layers]
        self.whole = kind(torch.cat(weights), torch.cat(biases) if biases else None)
        self._sizes = [layer.out_features for layer in layers]
        self._rows: torch.Tensor | None = None
        self._outputs: Sequence[torch.Tensor] = ()

    def output(self, number: int, rows: torch.Tensor) -> torch.Tensor:
        """Return the output of one of the layers for these rows. The outputs of all layers are
        computed at the first call with these rows, and released after the call for the last layer.
        """
        if rows is not self._rows:
            self._rows, self._outputs = rows, self.whole(rows).split(self._sizes, -1)
        output = self._outputs[number]
        if number == len(self._sizes) - 1:
            self._rows, self._outputs = None, ()
        return output


class MergedLinear(nn.Module):
    """Stands in the network for a linear layer that was joined with other layers in a
    MergedLinears.
    """

    def __init__(self, joined: MergedLinears, number: int, layer: nn.Linear) -> None:
        super().__init__()
        self.out_features = layer.out_features
        self.in_features = layer.in_features
        self.bias = layer.bias
        self.kernels = joined.whole.kernels
        # some models read the dtype of this attribute
        self.weight = torch.empty(0, dtype=layer.weight.dtype)
        self._joined = joined
        self._number = number

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the output of this layer for the rows that the network gives it."""
        return self._joined.output(self._number, rows)


@contextmanager
def recording_inputs(network: nn.Module) -> Iterator[Groups]:
    """Inside this context, record which linear layers a forward pass calls with the same tensor,
    one right after the other. Yields groups of the layers' names. A call with another tensor, or
    with a tensor that has been changed, starts a new group.
    """
    groups: Groups = []
    # the latest tensor and a copy of it; while it is kept, no other tensor can get its identity
    latest: list[Any] = [None, None]

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
def merge(network: nn.Module, groups: Groups, kind: LinearFactory) -> None:
    """Replace each group of linear layers by joined layers if each layer was called once, and if
    either all or none of them have a bias. Groups are replaced one at a time, so that at most one
    group is in memory twice.
    """
    calls = Counter(name for group in groups for name in group)
    left = {name for name, layer in network.named_modules() if type(layer) is nn.Linear}
    for group in groups:
        if not left.issuperset(group):
            continue
        layers: Any = [network.get_submodule(name) for name in group]
        consistent = len({layer.bias is None for layer in layers}) == 1
        if len(group) > 1 and consistent and all(calls[name] == 1 for name in group):
            joined = MergedLinears(layers, kind)
            for number, name in enumerate(group):
                network.set_submodule(name, MergedLinear(joined, number, layers[number]))


@torch.inference_mode()
def replace(network: nn.Module, other: Callable[[nn.Module], nn.Module | None]) -> None:
    """Replace each layer of a network for which `other` returns a new layer. Layers are replaced
    one at a time, so that at most one layer is in memory more than once. A layer with several names
    in the network is replaced by one layer with the same names.
    """
    first: dict[int, str] = {}  # the first name of each layer, by the layer's id
    names: dict[str, list[str]] = {}
    for name, layer in network.named_modules(remove_duplicate=False):
        if name:
            names.setdefault(first.setdefault(id(layer), name), []).append(name)
    for same in names.values():
        try:
            layer = network.get_submodule(same[0])
        except AttributeError:  # a parent of the layer was replaced
            continue
        better = other(layer)
        del layer  # frees the layer, which would otherwise live until the next one is made
        if better:
            for name in same:
                network.set_submodule(name, better)


def replacement(layer: nn.Module, kind: LinearFactory) -> nn.Module | None:
    """Return the layer that `kind` makes from `layer`; None if `layer` is not linear. If the weight
    of `layer` is tied to an embedding, the new layer has a copy of the weight.
    """
    if type(layer) is nn.Linear:
        return kind(layer.weight, layer.bias)
    if type(layer) is Conv1D:
        return kind(layer.weight.t(), layer.bias)
    return None
