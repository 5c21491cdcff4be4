"""Root mean square norms by the kernels of our own, found in a network by what they compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from engine.forward.cpu.kernels import kernels

ROWS = 4
ROUNDING = 16.0  # units, of outputs that are about 1


class Norm(nn.Module):
    """Computes what a layer of a network does to rows [..., size], its weight [size] being `shift`
    more than it says.
    """

    def __init__(
        self, layer: nn.Module, weight: torch.Tensor, epsilon: float, shift: float
    ) -> None:
        super().__init__()
        own = kernels()
        assert own, "asked for where there are some"
        self.layer = layer
        self._normalise, self._epsilon, self._dtype = own.norm, epsilon, weight.dtype
        self._weight = (weight.float() + shift).contiguous()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Called by the model."""
        if rows.dtype != self._dtype:  # what comes of that is for the layer to say
            said: torch.Tensor = self.layer(rows)
            return said
        return self._normalise(rows.contiguous(), self._weight, self._epsilon)


@torch.inference_mode()
def norm(layer: nn.Module) -> Norm | None:
    """A norm that computes the same as a layer of a network, up to rounding; None if there is none.
    Models have classes of their own for this, some of which add 1 to the weight.
    """
    weight: Any = getattr(layer, "weight", None)
    epsilon: Any = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    if not (isinstance(weight, torch.Tensor) and weight.dim() == 1 and isinstance(epsilon, float)):
        return None
    source = torch.Generator().manual_seed(0)
    rows = (torch.randn(ROWS, len(weight), generator=source) + 1).to(weight.dtype)  # no mean of 0
    close = ROUNDING * torch.finfo(weight.dtype).eps
    for shift in (0.0, 1.0):
        own = Norm(layer, weight, epsilon, shift)
        if torch.allclose(own(rows).float(), layer(rows).float(), close, close):
            return own
    return None
