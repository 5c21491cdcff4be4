"""Compute root mean square norms with this project's kernels. Such norms are recognised in a
network by the results that they compute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tandem.engine.forward import operations
from tandem.engine.forward.cpu.kernels import ELEMENT_TYPES
from tandem.engine.forward.equivalence import equivalent


class RMSNorm(nn.Module):
    """Computes the same as a layer of a network for rows [..., size]. The normalised rows are
    multiplied by the layer's weight [size] plus `shift`.
    """

    def __init__(self, layer: nn.Module, epsilon: float, shift: float) -> None:
        super().__init__()
        self.layer = layer
        self.weight: torch.Tensor = layer.weight  # type: ignore[assignment]
        self.epsilon = epsilon
        self._dtype = self.weight.dtype
        self.scale = (self.weight.float() + shift).contiguous()

    def fits(self, rows: torch.Tensor) -> bool:
        """Whether the kernel takes rows of this dtype and size."""
        return rows.dtype == self._dtype and rows.shape[-1] == len(self.scale)

    def forward(self, rows: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        """Compute the norm of rows. The network's own layer computes the norm if the rows do not
        fit the kernel, or there are further arguments.
        """
        if others or options or not self.fits(rows):
            output: torch.Tensor = self.layer(rows, *others, **options)
            return output
        return operations.norm(rows, self.scale, self.epsilon)


@torch.inference_mode()
def rms_norm(layer: nn.Module) -> RMSNorm | None:
    """Return a norm that computes the same as a layer of a network, up to rounding. Return None if
    there is no such norm. Models have classes of their own for norms, and some add 1 to the weight.
    """
    weight: Any = getattr(layer, "weight", None)
    epsilon: Any = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    if not (isinstance(weight, torch.Tensor) and weight.dim() == 1 and isinstance(epsilon, float)):
        return None
    if weight.dtype not in ELEMENT_TYPES:
        return None
    candidates = (RMSNorm(layer, epsilon, shift) for shift in (0.0, 1.0))
    return next((own for own in candidates if equivalent(layer, own, weight)), None)
