"""Compute root mean square norms with this project's kernels. A layer of a network is recognised as
a root mean square norm if its outputs equal those of a kernel, up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tandem.engine.forward import operations
from tandem.engine.forward.cpu.kernels import ELEMENT_TYPES
from tandem.engine.forward.equivalence import equivalent


class RMSNorm(nn.Module):
    """A root mean square norm that replaces a layer of a network, for rows [..., size]. The
    normalised rows are multiplied by the layer's weight [size] plus `shift`.
    """

    def __init__(self, layer: nn.Module, epsilon: float, shift: float) -> None:
        super().__init__()
        self.layer = layer
        self.weight: torch.Tensor = layer.weight  # type: ignore[assignment]
        self.epsilon = epsilon
        self._dtype = self.weight.dtype
        self.scale = (self.weight.float() + shift).contiguous()

    def fits(self, rows: torch.Tensor) -> bool:
        """Whether the kernel supports rows of this dtype and size."""
        return rows.dtype == self._dtype and rows.shape[-1] == len(self.scale)

    def forward(self, rows: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        """Normalise rows. If the kernel does not support the rows, or if the caller passes other
        arguments, the network's own layer is called.
        """
        if others or options or not self.fits(rows):
            output: torch.Tensor = self.layer(rows, *others, **options)
            return output
        return operations.norm(rows, self.scale, self.epsilon)


@torch.inference_mode()
def rms_norm(layer: nn.Module) -> RMSNorm | None:
    """Return a norm that can replace a layer of a network, or None if the layer computes something
    else. A layer is recognised by its outputs and not by its class, because models define classes
    of their own for norms, and some of these classes add 1 to the weight.
    """
    weight: Any = getattr(layer, "weight", None)
    epsilon: Any = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    if not (isinstance(weight, torch.Tensor) and weight.dim() == 1 and isinstance(epsilon, float)):
        return None
    if weight.dtype not in ELEMENT_TYPES:
        return None
    candidates = (RMSNorm(layer, epsilon, shift) for shift in (0.0, 1.0))
    return next((own for own in candidates if equivalent(layer, own, weight)), None)
