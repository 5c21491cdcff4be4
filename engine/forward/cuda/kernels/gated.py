"""Compute gated feed-forward layers. For few rows, a single kernel launch computes both inner
linear layers, the activation and the product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.engine.forward.cpu.kernels import Activation
from tandem.engine.forward.cuda.kernels.launch import STRICT, precision

OUTPUTS = 64  # outputs per Triton program: the number of rows of a tensor core instruction
# up to this number of rows, `gated_linear` is faster than cuBLAS followed by `gate`
FUSED_ROWS = 128
BLOCK = 1024  # outputs of a row that one Triton program of `_gate` computes


@triton.jit
def _activate(gate, GELU: tl.constexpr):
    if GELU:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        return 0.5 * gate * (2.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0))
    return gate / (1.0 + tl.exp(-gate))


@triton.jit(do_not_specialize=["count"])
def _gated_linear(
    rows, weight, out, count, size, inputs, row_stride,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr, EVEN: tl.constexpr,
    GELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute out[row, n] = activation(row . weight[n]) * (row . weight[size + n]). Intermediate
    results are rounded as if the operations ran separately. The weights are the left operand of
    each matrix product. Each input row is a column of the right operand, so a pass with few rows
    computes few columns. Each output is summed over the inputs in ascending order, for every value
    of ROWS.
    """
    number = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    step = tl.arange(0, STEP)
    gate_at = weight + tl.minimum(number, size - 1)[:, None].to(tl.int64) * inputs + step[None, :]
    other_at = gate_at + size.to(tl.int64) * inputs
    row_at = rows + tl.minimum(row, count - 1)[None, :].to(tl.int64) * row_stride + step[:, None]
    gate = tl.zeros((OUTPUTS, ROWS), tl.float32)
    other = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for first in range(0, inputs, STEP):
        if EVEN:
            one = tl.load(gate_at, eviction_policy="evict_first")
            two = tl.load(other_at, eviction_policy="evict_first")
            given = tl.load(row_at)
        else:
            left = step < inputs - first
            one = tl.load(gate_at, mask=left[None, :], other=0.0, eviction_policy="evict_first")
            two = tl.load(other_at, mask=left[None, :], other=0.0, eviction_policy="evict_first")
            given = tl.load(row_at, mask=left[:, None], other=0.0)
        gate = tl.dot(one, given, gate, input_precision=PRECISION)
        other = tl.dot(two, given, other, input_precision=PRECISION)
        gate_at += STEP
        other_at += STEP
        row_at += STEP
    kind = out.dtype.element_ty
    found = _activate(gate.to(kind).to(tl.float32), GELU).to(kind).to(tl.float32)
    found = found * other.to(kind).to(tl.float32)
    at = out + row[None, :].to(tl.int64) * size + number[:, None]
    tl.store(at, found.to(kind), mask=(row[None, :] < count) & (number[:, None] < size))


@triton.jit
def _gate(rows, out, size, BLOCK: tl.constexpr, GELU: tl.constexpr):
    """Compute out[row, n] = activation(rows[row, n]) * rows[row, size + n]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kind = out.dtype.element_ty
    gate = tl.load(rows + row * 2 * size + at, mask=at < size, other=0.0).to(tl.float32)
    other = tl.load(rows + row * 2 * size + size + at, mask=at < size, other=0.0).to(tl.float32)
    found = _activate(gate, GELU).to(kind).to(tl.float32) * other
    tl.store(out + row * size + at, found.to(kind), mask=at < size)


def gate(rows: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return activation(first half) * second half of contiguous rows [rows, 2 * size]."""
    count, size = rows.shape[0], rows.shape[1] // 2
    out = torch.empty(count, size, dtype=rows.dtype, device=rows.device)
    gelu = activation is Activation.GELU_TANH
    _gate[(count, triton.cdiv(size, BLOCK))](rows, out, size, BLOCK, gelu, num_warps=4, **STRICT)
    return out


def gated_linear(
    rows: torch.Tensor,  # [rows, in], of which the last dimension is contiguous
    weight: torch.Tensor,  # [2 * out, in], contiguous: first the gate layer, then the up layer
    activation: Activation,
) -> torch.Tensor:
    """Return activation(rows @ first.T) * (rows @ second.T), [rows, out], where `first` and
    `second` are the halves of `weight`. The result has the same bits as a matrix product whose sums
    are not split, followed by the function `gate`.
    """
    (count, inputs), size = rows.shape, weight.shape[0] // 2
    out = torch.empty(count, size, dtype=rows.dtype, device=rows.device)
    wide = max(16, min(triton.next_power_of_2(count), FUSED_ROWS))
    step, stages = (128, 4) if wide < FUSED_ROWS else (64, 6)
    warps = 4
    if rows.dtype == torch.float32:
        step, stages, warps = step // 4, 2, 4 if wide < FUSED_ROWS else 8
    _gated_linear[(triton.cdiv(count, wide), triton.cdiv(size, OUTPUTS))](
        *(rows, weight, out, count, size, inputs, rows.stride(0)),
        ROWS=wide,
        OUTPUTS=OUTPUTS,
        STEP=step,
        EVEN=inputs % step == 0,
        GELU=activation is Activation.GELU_TANH,
        PRECISION=precision(rows.dtype),
        num_warps=warps,
        num_stages=stages,
        **STRICT,
    )
    return out
