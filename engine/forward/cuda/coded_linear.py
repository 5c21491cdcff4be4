"""Linear layers for CUDA devices that compute directly with weights quantized to 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from tandem.engine.forward.grouped_weight import GroupedWeight, Part, PlainNumbers, StoredGroups

CODES_AT_ONCE = 1 << 26  # maximum number of codes that are rearranged at a time (64 MiB)
Product = Callable[[torch.Tensor], torch.Tensor]


class CodedLinear(nn.Module):
    """An `nn.Linear` for inference on a CUDA device, [..., in] -> [..., out]. A Triton kernel
    computes the outputs whose weights are quantized, and cuBLAS computes the other outputs.
    """

    kernels = "Triton"

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features: int = weight.shape[0]
        self.in_features: int = weight.shape[1]
        # some models read the dtype of this attribute
        self.weight = torch.empty(0, dtype=weight.dtype, device=weight.device)
        self.bias = bias
        sizes = [part.shape[0] for part in weight.parts]
        biases = [None] * len(sizes) if bias is None else bias.split(sizes)
        parts = zip(weight.parts, biases, strict=True)
        self._products = [_product(part, weight.dtype, own) for part, own in parts]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Apply the layer to rows, [..., in] -> [..., out]."""
        flat = rows.reshape(-1, self.in_features)
        found = [product(flat) for product in self._products]
        out = found[0] if len(found) == 1 else torch.cat(found, 1)
        return out.view(*rows.shape[:-1], self.out_features)


def _product(part: Part, dtype: torch.dtype, bias: torch.Tensor | None) -> Product:
    """Return a function that computes the outputs of one part of a weight, including the bias, for
    rows [rows, in].
    """
    from tandem.engine.forward.cuda.kernels import codes

    if isinstance(part, PlainNumbers):
        return partial(functional.linear, weight=part.weight.to(dtype), bias=bias)
    assert isinstance(part, StoredGroups), "panels are for CPUs"
    outputs, inputs = part.shape
    step = max(1, CODES_AT_ONCE // inputs)
    starts = range(0, outputs, step)
    laid = [codes.Codes.of(part.groups(slice(at, at + step)), dtype) for at in starts]
    stored, factors = torch.cat([c.bytes for c in laid]), torch.cat([c.factors for c in laid])
    return partial(codes.linear, codes=replace(laid[0], bytes=stored, factors=factors), bias=bias)
