"""Linear layers whose weights are laid out once for the matrix kernels that come with PyTorch. They
are up to twice as fast for the few rows of a step. The rounding of a row depends on the number of
rows.
"""

from __future__ import annotations

import torch
from torch import nn


class PackedLinear(nn.Module):
    """An `nn.Linear` or `Conv1D` for inference on a CPU, [..., in] -> [..., out]."""

    kernels = "onednn"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.weight = weight.new_empty(0)  # some models ask for its dtype
        self.packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute the layer for rows, [..., in] -> [..., out]."""
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
            rows, self.packed, self.bias, "none", [], ""
        )
        return out


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this processor has kernels for packed weights of a dtype."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32
