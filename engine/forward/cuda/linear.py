"""Linear layers on a CUDA device."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import nn


class CudaLinear(nn.Linear):
    """An `nn.Linear` for inference, which uses an existing weight [out, in] without copying it."""

    kernels = "cuBLAS and Triton"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        outputs, inputs = weight.shape
        super().__init__(inputs, outputs, bias is not None, device="meta", dtype=weight.dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)  # type: ignore[assignment]


def has_kernels(device: torch.device) -> bool:
    """Whether this project's kernels can run on a device: it must be a CUDA device, with Triton."""
    return device.type == "cuda" and find_spec("triton") is not None
