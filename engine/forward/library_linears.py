"""Linear layers that use the matrix kernels of libraries: oneDNN on a CPU, and cuBLAS on a CUDA
device. These layers are used where this project has no kernels of its own.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn

from tandem.engine.forward.cuda.coded_linear import CodedLinear
from tandem.engine.forward.grouped_weight import GroupedWeight


class PackedLinear(nn.Module):
    """An `nn.Linear` or `Conv1D` for inference on a CPU, [..., in] -> [..., out].

    The weight is packed once, in the layout of the oneDNN kernels that come with PyTorch. For the
    few rows of a step, these kernels are up to twice as fast with a packed weight. How the result
    of a row is rounded depends on the number of rows.
    """

    kernels = "onednn"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features: int = weight.shape[0]
        self.in_features: int = weight.shape[1]
        self.bias = bias
        self.weight = weight.new_empty(0)  # some models read the dtype of this attribute
        self.packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Apply the layer to rows, [..., in] -> [..., out]."""
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
            rows, self.packed, self.bias, "none", [], ""
        )
        return out


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN supports packed weights of a dtype on this processor."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


class CudaLinear(nn.Linear):
    """An `nn.Linear` for inference on a CUDA device, which uses an existing weight [out, in]
    without copying it.
    """

    kernels = "cuBLAS and Triton"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        outputs, inputs = weight.shape
        super().__init__(inputs, outputs, bias is not None, device="meta", dtype=weight.dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)  # type: ignore[assignment]


def cuda_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    """Return a linear layer with a weight [out, in] for inference on a CUDA device."""
    if isinstance(weight, GroupedWeight):
        return CodedLinear(weight, bias)
    return CudaLinear(weight, bias)


def has_kernels(device: torch.device) -> bool:
    """Whether this project's kernels can run on a device: it must be a CUDA device, with Triton."""
    return device.type == "cuda" and find_spec("triton") is not None
