"""Compute gated feed-forward layers in few kernel calls: one for both inner layers, one for the
gate, one for the outer layer. A layer of a network is recognised as a gated layer if its outputs
equal those of a reference implementation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from tandem.engine.forward import operations
from tandem.engine.forward.cpu.kernels import Activation
from tandem.engine.forward.equivalence import equivalent

# makes a linear layer from weight and bias
LinearFactory = Callable[[torch.Tensor, torch.Tensor | None], nn.Module]

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.SILU: functional.silu,
    Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
}
PROBES = torch.linspace(-8, 8, 64)  # inputs for which different activations have different results
# attributes in which models store the inner layers, and the outer layer
INNER, OUTER = ("gate_proj", "up_proj", "gate_up_proj"), "down_proj"
TOLERANCE = 1e-5  # less than the difference between exact and approximate GELU, 5e-4


class GatedMLP(nn.Module):
    """A layer that computes outer(activation(a) * b) for rows [..., size], where a and b are the
    halves of inner(rows).
    """

    def __init__(self, inner: nn.Module, outer: nn.Module, activation: Activation) -> None:
        super().__init__()
        self.inner = inner
        self.outer = outer
        self.activation = activation

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Apply the layer to rows [..., size]."""
        output: torch.Tensor = self.outer(operations.gated(self.inner, rows, self.activation))
        return output


@torch.inference_mode()
def gated_mlp(layer: nn.Module, kind: LinearFactory) -> GatedMLP | None:
    """Return a gated layer that can replace a layer of a network, or None if the layer computes
    something else. The linear layers of the gated layer are made by `kind`.
    """
    parts = (getattr(layer, name, None) for name in INNER)
    inner = [part for part in parts if type(part) is nn.Linear]
    outer, middle = getattr(layer, OUTER, None), getattr(layer, "act_fn", None)
    activation = activation_of(middle or getattr(layer, "activation_fn", None))
    biases: list[torch.Tensor] = [part.bias for part in inner if part.bias is not None]
    consistent = len(biases) in (0, len(inner)) and len({part.in_features for part in inner}) == 1
    if type(outer) is not nn.Linear or activation is None or not consistent:
        return None
    if sum(part.out_features for part in inner) != 2 * outer.in_features:
        return None

    def reference(rows: torch.Tensor) -> torch.Tensor:
        first, second = torch.cat([part(rows) for part in inner], -1).chunk(2, -1)
        made: torch.Tensor = outer(ACTIVATIONS[activation](first) * second)
        return made

    if not equivalent(layer, reference, inner[0].weight):
        return None
    weights: list[torch.Tensor] = [part.weight for part in inner]
    joined = kind(torch.cat(weights), torch.cat(biases) if biases else None)
    found = GatedMLP(joined, kind(outer.weight, outer.bias), activation)
    # CUDA kernels may fail, so the gated layer is tested before it is used
    on_cpu = outer.weight.device.type == "cpu"
    return found if on_cpu or equivalent(layer, found, inner[0].weight) else None


def activation_of(layer: object) -> Activation | None:
    """Return the activation function that a layer computes, or None if no kernel computes it."""
    output = (
        layer(PROBES) if isinstance(layer, nn.Module) and not list(layer.parameters()) else None
    )
    for activation, function in ACTIVATIONS.items():
        if output is not None and torch.allclose(output, function(PROBES), TOLERANCE, TOLERANCE):
            return activation
    return None
