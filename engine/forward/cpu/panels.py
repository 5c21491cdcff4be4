"""Linear layers whose weights lie in panels, for the compiled kernels.

A row is the same, bit for bit, alone and with others: sums run over ascending inputs, in float32,
whatever the weights are stored in.
"""

from __future__ import annotations

import torch
from torch import nn

from tandem.engine.forward.cpu.kernels import ELEMENT_TYPES, kernels, required_kernels

LEVELS = 127  # of an 8-bit weight, on either side of 0


class PanelLinear(nn.Module):
    """An `nn.Linear` for inference on a CPU, [..., in] -> [..., out], from a weight [out, in]; or
    several at once, from a weight [layers, out, in]. `rounded`: whether its outputs are rounded to
    the dtype of the rows, or left as the float32 sums that they are.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        build = required_kernels()
        self.out_features, self.in_features = weight.shape[-2:]
        self.weight = weight.new_empty(0)  # some models ask for its dtype
        self.bias, self.kernels, self.rounded = bias, build.name, True
        self._multiply = build.linear
        self._bias = None if bias is None else bias.float().contiguous()
        self._scales: torch.Tensor | None = None
        paired = build.pairs and weight.dtype == torch.bfloat16 and self.in_features % 2 == 0
        weights = weight.reshape(-1, self.out_features, self.in_features)
        self._panels = in_panels(weights, build.width, 2 if paired else 1)

    def forward(self, rows: torch.Tensor, ends: torch.Tensor | None = None) -> torch.Tensor:
        """Called by the model; of several layers, each takes the rows up to its own of the `ends`.
        Raises RuntimeError for rows of another dtype than the weight's.
        """
        if rows.dtype != self.weight.dtype:
            raise RuntimeError(f"rows of {rows.dtype} for a weight of {self.weight.dtype}")
        flat = rows.reshape(-1, self.in_features).contiguous()
        dtype = rows.dtype if self.rounded else torch.float32
        given = self._panels, self.out_features, self._scales, self._bias
        out = self._multiply(flat, *given, ends, dtype)
        return out.view(*rows.shape[:-1], self.out_features)


class Int8Linear(PanelLinear):
    """One whose weights are rounded to 8 bits, by a scale for each output; its inputs are not."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        scales = (weight.abs().amax(-1).float() / LEVELS).clamp_min(1e-12)
        super().__init__((weight / scales[..., None]).round().to(torch.int8), bias)
        self.weight = weight.new_empty(0)
        self._scales = scales


def in_panels(weights: torch.Tensor, width: int, together: int) -> torch.Tensor:
    """Weights [layers, out, in] as [layers, panels, in / together, width, together]; outputs that
    lack are zeros.
    """
    layers, outputs, inputs = weights.shape
    panels = weights.new_zeros(layers, -(-outputs // width), inputs // together, width, together)
    whole, rest = divmod(outputs, width)
    first, last = weights.unflatten(2, (-1, together)).split((outputs - rest, rest), 1)
    panels[:, :whole] = first.unflatten(1, (whole, width)).transpose(2, 3)
    panels[:, whole:, :, :rest] = last[:, None].transpose(2, 3)
    return panels


def why_unsupported(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why there are no such layers; None if there are."""
    if device.type != "cpu":
        return f"they are not for {device.type}"
    if dtype not in ELEMENT_TYPES:
        return f"they do not take {str(dtype).removeprefix('torch.')}"
    return None if kernels() else "they were not built, for want of a compiler, or cannot be loaded"
