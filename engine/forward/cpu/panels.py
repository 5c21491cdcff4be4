"""Linear layers that run on the compiled kernels. Their weights are packed into panels.

A row's output has the same bits whether the row is computed alone or together with other rows. Each
output is summed in float32, in ascending order of the inputs, whatever the storage format of the
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from tandem.engine.forward.cpu.group_panels import GroupPanels
from tandem.engine.forward.cpu.kernels import (
    ELEMENT_TYPES,
    Kernels,
    Weights,
    kernels,
    plain_weights,
    required_kernels,
)
from tandem.engine.forward.grouped_weight import GroupedWeight, Part, PlainNumbers, StoredGroups

Multiply = Callable[[torch.Tensor, torch.Tensor | None, torch.dtype], torch.Tensor]


class PanelLinear(nn.Module):
    """An `nn.Linear` for inference on a CPU, [..., in] -> [..., out]. The object holds one layer if
    the weight is [out, in], and several layers if the weight is [layers, out, in]. If `rounded` is
    set, outputs are rounded to the dtype of the rows; otherwise outputs stay float32 sums.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        build = required_kernels()
        self.out_features: int = weight.shape[-2]
        self.in_features: int = weight.shape[-1]
        # some models read the dtype of this attribute
        self.weight = torch.empty(0, dtype=weight.dtype)
        self.bias = bias
        self.kernels = build.name
        self.rounded = True
        layers = weight.shape[0] if weight.dim() == 3 else 1
        self.parts = list(_parts(weight, bias, layers, build))

    def forward(self, rows: torch.Tensor, ends: torch.Tensor | None = None) -> torch.Tensor:
        """Apply the layer to rows. If there are several layers, layer i is applied to the rows from
        ends[i - 1] to ends[i]. Raises RuntimeError if the rows and the weight differ in dtype.
        """
        if rows.dtype != self.weight.dtype:
            raise RuntimeError(f"rows of {rows.dtype} do not match a weight of {self.weight.dtype}")
        flat = rows.reshape(-1, self.in_features).contiguous()
        dtype = rows.dtype if self.rounded else torch.float32
        found = [part.multiply(flat, ends, dtype) for part in self.parts]
        out = found[0] if len(found) == 1 else torch.cat(found, 1)
        return out.view(*rows.shape[:-1], self.out_features)


class PlainPart:
    """The part of a `PanelLinear` whose weights [layers, out, in] are not quantized."""

    def __init__(self, weights: torch.Tensor, bias: torch.Tensor | None, build: Kernels) -> None:
        even = weights.shape[2] % 2 == 0
        paired = build.bf16_pairs and weights.dtype == torch.bfloat16 and even
        self._multiply = build.linear
        self.bias = bias
        panels = packed_panels(weights, build.width, 2 if paired else 1)
        self.weights = plain_weights(panels, weights.shape[1])

    def multiply(
        self, rows: torch.Tensor, ends: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the product of rows and weights plus the bias, [rows, out] of `dtype`."""
        return self._multiply(rows, self.weights, self.bias, ends, dtype)


class GroupedPart:
    """The part of a `PanelLinear` whose weights are quantized to 8 or 4 bits."""

    def __init__(
        self, stored: StoredGroups, layers: int, bias: torch.Tensor | None, build: Kernels
    ) -> None:
        panels = GroupPanels(stored, layers, build.width)
        self.panels = panels
        self._multiply = build.linear
        self.bias = bias
        self.weights = Weights(
            *(panels.codes, panels.code, panels.layers, panels.outputs, panels.grouping)
        )

    def multiply(
        self, rows: torch.Tensor, ends: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the product of rows and weights plus the bias, [rows, out] of `dtype`."""
        return self._multiply(rows, self.weights, self.bias, ends, dtype)


def _parts(
    weight: torch.Tensor, bias: torch.Tensor | None, layers: int, build: Kernels
) -> Iterator[PlainPart | GroupedPart]:
    """Split a weight by the storage format of its outputs, and yield one part per format."""
    added = None if bias is None else bias.float().contiguous()
    if not isinstance(weight, GroupedWeight):
        yield PlainPart(weight.reshape(layers, *weight.shape[-2:]), added, build)
        return
    parts = list[Part](weight.parts)
    sizes = [part.shape[0] for part in parts]
    assert layers == 1 or len(parts) == 1, "a weight of several layers has only one part"
    biases = added.split(sizes) if added is not None and layers == 1 else [added] * len(parts)
    for part, own in zip(parts, biases, strict=True):
        if isinstance(part, StoredGroups):
            yield GroupedPart(part, layers, own, build)
        else:
            assert isinstance(part, PlainNumbers), "a part is either quantized or plain"
            yield PlainPart(part.weight.to(weight.dtype)[None], own, build)


def packed_panels(weights: torch.Tensor, width: int, k_pack: int) -> torch.Tensor:
    """Rearrange weights [layers, out, in] as [layers, panels, in / k_pack, width, k_pack]. Each
    panel has `width` outputs, and the last panel is padded with zeros. `k_pack` is the number of
    inputs that a kernel multiplies at once.
    """
    layers, outputs, inputs = weights.shape
    panels = weights.new_zeros(layers, -(-outputs // width), inputs // k_pack, width, k_pack)
    whole, remainder = divmod(outputs, width)
    first, last = weights.unflatten(2, (-1, k_pack)).split((outputs - remainder, remainder), 1)
    panels[:, :whole] = first.unflatten(1, (whole, width)).transpose(2, 3)
    panels[:, whole:, :, :remainder] = last[:, None].transpose(2, 3)
    return panels


def why_unsupported(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why a `PanelLinear` cannot be used with a dtype on a device, or None if it can be
    used.
    """
    if device.type != "cpu":
        return f"they do not support {device.type}"
    if dtype not in ELEMENT_TYPES:
        return f"they do not support {str(dtype).removeprefix('torch.')}"
    return None if kernels() else "no compiler was found to build them, or they cannot be loaded"
