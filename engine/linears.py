"""Linear layers laid out once for the matrix kernels of this processor, or rounded to 8 bits.

A packed layer computes the same function up to rounding, up to twice as fast for the few rows of a
step, and its rows do not depend on how many there are from two rows on; four cost no more than one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

ROWS = 4


class PackedLinear(nn.Module):
    """An `nn.Linear` or `Conv1D` for inference on a CPU, [..., in] -> [..., out]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.weight = weight.new_empty(0)  # some models ask for its dtype
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Called by the model."""
        flat = rows.reshape(-1, self.in_features)
        count = flat.shape[0]
        if count < ROWS:
            flat = F.pad(flat, (0, 0, 0, ROWS - count))
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            flat, self.packed, self.bias, "none", [], ""
        )
        return out[:count].view(*rows.shape[:-1], self.out_features)


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this processor has kernels for packed weights of a dtype."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


class Int8Linear(nn.Module):
    """An approximate linear layer for drafters: 8-bit weights, one scale per output, and inputs
    rounded to 8 bits by one scale for all rows. So rows depend on each other: never for a verifier.
    """

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


Layer = Callable[[torch.Tensor, torch.Tensor | None], nn.Module]


@torch.inference_mode()
def replace(network: nn.Module, layer: Layer) -> None:
    """Replace every linear layer of a network by another kind, one at a time, so that no more than
    one is held twice. One whose weight is tied to an embedding gets a copy of it.
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
