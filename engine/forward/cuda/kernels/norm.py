"""Compute the root mean square norms of rows, or of the sums of two rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.engine.forward.cuda.kernels.launch import STRICT, power_of_two

# the maximum row sizes for 4 warps and for 8 warps; longer rows use 16 warps
MOST_OF_4_WARPS, MOST_OF_8_WARPS = 2048, 8192


@triton.jit
def _norm(
    rows, others, scale, sums, out, outer_stride, inner_stride, size, epsilon,
    INNER: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """Compute row / sqrt(mean(row^2) + epsilon) * scale for one row, rounded once. If ADDS is set,
    the row is the sum of two rows; this sum is rounded and stored before it is normalised.
    """
    number = tl.program_id(0).to(tl.int64)
    offset = number // INNER * outer_stride + number % INNER * inner_stride
    at = tl.arange(0, BLOCK)
    inside = at < size
    kind = out.dtype.element_ty
    row = tl.load(rows + offset + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        row += tl.load(others + number * size + at, mask=inside, other=0.0).to(tl.float32)
        row = row.to(kind).to(tl.float32)
        tl.store(sums + number * size + at, row.to(kind), mask=inside)
    factor = 1.0 / tl.sqrt_rn(tl.sum(row * row, 0) / size + epsilon)
    weight = tl.load(scale + at, mask=inside, other=0.0)
    tl.store(out + number * size + at, (row * factor * weight).to(kind), mask=inside)


def norm(rows: torch.Tensor, scale: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return rows [..., size], divided by their root mean square, times a float32 scale [size]. The
    last dimension of rows must be contiguous; the other dimensions may have any strides.
    """
    out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    heads = rows.dim() > 2 and rows.stride(-1) == 1 and not rows.is_contiguous()
    inner = rows.shape[-2] if heads else 1
    _launch(rows.reshape(-1, inner, rows.shape[-1]), None, scale, None, out, epsilon)
    return out


def add_norm(
    one: torch.Tensor, other: torch.Tensor, scale: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two results for two contiguous tensors of rows [..., size]: their sum, and the root
    mean square norm of the sum.
    """
    sums, out = torch.empty_like(one), torch.empty_like(one)
    _launch(one.view(-1, 1, one.shape[-1]), other, scale, sums, out, epsilon)
    return sums, out


def _launch(
    rows: torch.Tensor,  # [outer, inner, size]
    others: torch.Tensor | None,
    scale: torch.Tensor,
    sums: torch.Tensor | None,
    out: torch.Tensor,
    epsilon: float,
) -> None:
    outer, inner, size = rows.shape
    given = (rows, rows if others is None else others, scale, out if sums is None else sums, out)
    _norm[(outer * inner,)](
        *(*given, rows.stride(0), rows.stride(1), size, epsilon),
        INNER=inner,
        BLOCK=power_of_two(size),
        ADDS=others is not None,
        num_warps=4 if size <= MOST_OF_4_WARPS else 8 if size <= MOST_OF_8_WARPS else 16,
        **STRICT,
    )
