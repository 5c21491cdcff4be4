"""Gated feed-forward layers in three calls of the kernels of our own: both inner layers as one, the
gate, the outer layer. They are found in a network by what they compute.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from engine.forward.cpu.kernels import Activation, kernels

Layer = Callable[[torch.Tensor, torch.Tensor | None], nn.Module]  # from weight and bias

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.SILU: functional.silu,
    Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
}
NUMBERS = torch.linspace(-8, 8, 64)  # to tell activations apart
INNER, OUTER = ("gate_proj", "up_proj", "gate_up_proj"), "down_proj"
ROWS = 4
CLOSE = 1e-2  # of the largest output, in half precision
SAME = 1e-5  # two kinds of GELU are 5e-4 apart


class Gated(nn.Module):
    """outer(activation(first half of inner) * second half), of rows [..., size]."""

    def __init__(self, inner: nn.Module, outer: nn.Module, activation: Activation) -> None:
        super().__init__()
        own = kernels()
        assert own, "asked for where there are some"
        self.inner, self.outer = inner, outer
        self._gate, self._activation = own.gate, activation

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Called by the model."""
        wide = self.inner(rows)
        gated = self._gate(wide.view(-1, wide.shape[-1]), self._activation)
        said: torch.Tensor = self.outer(gated.view(*rows.shape[:-1], -1))
        return said


@torch.inference_mode()
def gated(layer: nn.Module, kind: Layer) -> Gated | None:
    """What computes the same as a layer of a network, by linear layers of a kind; None if the layer
    is of another form.
    """
    inner = [part for name in INNER if isinstance(part := getattr(layer, name, None), nn.Linear)]
    outer, middle = getattr(layer, OUTER, None), getattr(layer, "act_fn", None)
    activation = _activation(middle or getattr(layer, "activation_fn", None))
    biases: list[torch.Tensor] = [part.bias for part in inner if part.bias is not None]
    alike = len(biases) in (0, len(inner))
    if not (inner and alike and isinstance(outer, nn.Linear)) or activation is None:
        return None
    source = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, inner[0].in_features, generator=source).to(outer.weight)
    first, second = torch.cat([part(rows) for part in inner], -1).chunk(2, -1)
    expected, said = outer(ACTIVATIONS[activation](first) * second), layer(rows)
    if (expected - said).abs().max() > CLOSE * said.abs().max():
        return None
    weights: list[torch.Tensor] = [part.weight for part in inner]
    joined = kind(torch.cat(weights), torch.cat(biases) if biases else None)
    return Gated(joined, kind(outer.weight, outer.bias), activation)


def _activation(layer: nn.Module | None) -> Activation | None:
    """Which of those that there are kernels for a layer is, if any."""
    said = None if layer is None else layer(NUMBERS)
    for activation, function in ACTIVATIONS.items():
        if said is not None and torch.allclose(said, function(NUMBERS), SAME, SAME):
            return activation
    return None
