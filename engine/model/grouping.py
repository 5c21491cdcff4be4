"""Round the weights of a network to 8-bit codes, in groups that share a scale.

The weights are rounded right after loading, before the reference logits are computed, so the
self-test compares with a network that has the same rounded weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tandem.engine.forward.cpu.experts import INNER, OUTER
from tandem.engine.forward.grouped_weight import GroupedWeight, StoredGroups
from tandem.engine.forward.groups import Code, Groups, rounded


@torch.inference_mode()
def round_linears(network: PreTrainedModel) -> None:
    """Round the weights of all linear layers whose number of inputs is a multiple of 16. On a CPU,
    there are 8-bit kernels for experts, so expert weights are rounded too if their number of inputs
    is a multiple of 16. If an embedding shares its weight with a linear layer, the embedding keeps
    the unrounded weight.
    """
    for name, layer in list(network.named_modules()):
        if type(layer) is Conv1D:
            linear = nn.Linear(layer.nx, layer.nf, device="meta")
            linear.weight, linear.bias = nn.Parameter(layer.weight.t(), False), layer.bias
            network.set_submodule(name, linear)
            layer = linear
        if type(layer) is nn.Linear:
            _round(layer, "weight")
        elif all(_on_cpu(getattr(layer, each, None)) for each in (INNER, OUTER)):
            _round(layer, INNER)
            _round(layer, OUTER)


def _on_cpu(weight: object) -> bool:
    return isinstance(weight, nn.Parameter) and weight.device.type == "cpu"


def _round(layer: nn.Module, name: str) -> None:
    """Round a weight, unless it is already stored in groups. A weight with three dimensions holds
    the weights of several experts.
    """
    weight = getattr(layer, name)
    layers = weight.shape[0] if weight.dim() == 3 else None
    groups = None if isinstance(weight, GroupedWeight) else rounded(weight.flatten(0, -2))
    if groups is not None:
        made = GroupedWeight([as_part(groups)], weight.dtype, layers)
        setattr(layer, name, nn.Parameter(made, requires_grad=False))


@dataclass(frozen=True)
class Apart:
    """Makes Groups from codes and scales that are stored as two separate tensors. The groups have
    no super-block scales (`supers`).
    """

    code: Code
    zero: int

    def __call__(self, codes: torch.Tensor, scales: torch.Tensor) -> Groups:
        """Return groups of the codes [out, in] and the scales [out, groups, 1 or 2]."""
        return Groups(self.code, codes, scales, None, self.zero)


def as_part(groups: Groups) -> StoredGroups:
    """Return groups in the form of a part of a GroupedWeight."""
    stored = groups.codes, groups.scales
    return StoredGroups(stored, groups.codes.shape[1], Apart(groups.code, groups.zero))
