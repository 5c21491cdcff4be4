"""Linear layers laid out once for the matrix kernels of this processor.

A packed layer computes the same function up to rounding, up to twice as fast for the few rows of a
step. Its rows do not depend on how many there are: kernels are chosen by the number of rows, and
some round differently from others, so only numbers that were seen to agree are multiplied at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from engine.cancelling import doubled

LEAST, MOST = 4, 256  # rows at once; four cost no more than one
BASE = 48  # rows of the kernels that agree most often, where not all do; they cost little more
SIZES = (BASE, 64, 96, 128, 192, MOST)
TRIED = (LEAST, 5, 7, 17, 31, 32, 33, 49, 65, 127, *SIZES)


class PackedLinear(nn.Module):
    """An `nn.Linear` or `Conv1D` for inference on a CPU, [..., in] -> [..., out]."""

    kernels = "onednn"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.weight = weight.new_empty(0)  # some models ask for its dtype
        self.sizes = agreeing(*weight.shape, weight.dtype, torch.get_num_threads())
        self.packed = pack(weight)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Called by the model."""
        count = rows.numel() // self.in_features
        if count in self.sizes:
            return multiply(rows, self.packed, self.bias)
        flat = rows.reshape(count, self.in_features)
        pieces = [self._padded(piece) for piece in flat.split(self.sizes[-1])]
        out = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return out.view(*rows.shape[:-1], self.out_features)

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        count = rows.shape[0]
        size = self.sizes[bisect_left(self.sizes, count)]
        padded = F.pad(rows, (0, 0, 0, size - count)) if count < size else rows
        return multiply(padded, self.packed, self.bias)[:count]


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this processor has kernels for packed weights of a dtype."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def pack(weight: torch.Tensor) -> torch.Tensor:
    """A weight, [out, in], as the kernels want it."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return packed


def multiply(
    rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """All rows at once, whatever that does to their bits."""
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
        rows, packed, bias, "none", [], ""
    )
    return out


@cache
def agreeing(
    out_features: int, in_features: int, dtype: torch.dtype, threads: int
) -> Sequence[int]:
    """The numbers of rows that may be multiplied at once: all from `LEAST` to `MOST` if those that
    are tried give the same bits as `BASE` rows at a time, else those of `SIZES` that do.
    """
    assert threads == torch.get_num_threads(), "kernels are chosen by the number of threads too"
    weight, rows = _cancelling(out_features, in_features, dtype)
    packed = pack(weight)
    del weight  # it may be as large as a layer
    base = torch.cat([multiply(piece, packed) for piece in rows.split(BASE)])
    same = [size for size in TRIED if torch.equal(multiply(rows[:size], packed), base[:size])]
    if len(same) == len(TRIED):
        return range(LEAST, MOST + 1)
    return tuple(size for size in same if size in SIZES)


def _cancelling(
    out_features: int, in_features: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and rows whose products cancel."""
    source = torch.Generator().manual_seed(0)
    order = torch.randperm(in_features // 2, generator=source)
    few = doubled(BASE, in_features, 1, order, source).to(dtype)
    rows = doubled(-(-MOST // BASE) * BASE, in_features, -1, order, source).to(dtype)
    return few.repeat(-(-out_features // BASE), 1)[:out_features], rows
