"""Linear layers whose weights are quantized to codes of 8 or 4 bits. The kernel multiplies the
codes directly and never stores dequantized weights. A pass over few rows therefore takes only as
long as reading the codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tandem.engine.forward.cuda.kernels.launch import STRICT, power_of_two, precision
from tandem.engine.forward.groups import Code, Groups

OUTPUTS = 64  # outputs per Triton program: the number of rows of a tensor core instruction
# maximum rows per Triton program; the lower limit is for float32 rows and for codes with minima,
# which need more registers per row
MAX_ROWS, FEWER_ROWS = 128, 64
MIN_NIBBLES = 32  # minimum step for 4-bit codes: half a step fills a tensor core instruction
MAX_STEP = 128  # maximum number of inputs that a Triton program multiplies at once
FLOAT8_UNIT = 256.0  # `_numbers` returns the values of e4m3 codes divided by this factor


@dataclass(frozen=True)
class Codes:
    """A quantized weight [out, in] in the layout that the kernel reads. A byte holds one code, or
    two codes of 4 bits. The kernel processes `step` inputs at a time. With two codes per byte, the
    low 4 bits hold the codes of the first half of a step's inputs, and the high 4 bits hold the
    codes of the second half.
    """

    code: Code
    zero: int
    group: int  # number of inputs that share scales and minima
    step: int  # number of inputs that the kernel multiplies at once
    bytes: torch.Tensor  # [out, in] or [out, in / 2]: int8 or uint8
    factors: torch.Tensor  # scales, and minima where there are any, [out, groups, 1 or 2] float32

    @classmethod
    def of(cls, groups: Groups, dtype: torch.dtype) -> Codes:
        """Convert `groups` to the layout that the kernel reads for rows of `dtype`."""
        code, codes, group = groups.code, groups.codes, groups.group
        step = min(group, MAX_STEP if dtype != torch.float32 else MAX_STEP // 4)
        if code is Code.NIBBLES and step < MIN_NIBBLES:
            code = Code.BYTES
        factors = groups.factors()
        if code is Code.NIBBLES:
            low, high = codes.unflatten(1, (-1, 2, step // 2)).unbind(2)
            codes = (low | high << 4).flatten(1)
        elif code is Code.BYTES:
            codes = codes.view(torch.int8)
        else:
            factors = torch.cat([factors[..., :1] * FLOAT8_UNIT, factors[..., 1:]], -1)
        zero = groups.zero if factors.shape[2] == 1 else 0  # no zero point if there are minima
        return cls(code, zero, group, step, codes, factors)


@triton.jit
def _numbers(codes, zero, KIND: tl.constexpr, FLOAT8: tl.constexpr):
    """Convert codes, minus their zero point, to numbers of type KIND. The conversion is exact. The
    result for an e4m3 code is 1/256 of its value.
    """
    if FLOAT8:
        bits = codes.to(tl.int16)
        halves = ((bits & 128) << 8 | (bits & 127) << 7).to(tl.float16, bitcast=True)
        return halves.to(tl.float32).to(KIND)
    return (codes.to(tl.int16) - zero).to(tl.float32).to(KIND)


@triton.jit(do_not_specialize=["count", "zero"])
def _linear_of_codes(
    rows, codes, factors, bias, out, count, outputs, groups, zero, row_stride,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, GROUP: tl.constexpr, STEP: tl.constexpr,
    FLOAT8: tl.constexpr, NIBBLES: tl.constexpr, MINIMA: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute out[row, n] = row . weight[n] + bias[n]. The products of inputs and codes are first
    summed over a group of inputs, and this sum is then multiplied by the group's scale. The codes
    are the left operand of each matrix product. Each input row is a column of the right operand, so
    a pass with few rows computes few columns. Each output is summed over the inputs in ascending
    order, for every value of ROWS.
    """
    KIND: tl.constexpr = rows.dtype.element_ty
    number = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = tl.minimum(number, outputs - 1).to(tl.int64)
    BYTES: tl.constexpr = STEP // 2 if NIBBLES else STEP
    byte = tl.arange(0, BYTES)
    code_at = codes + known[:, None] * (groups * GROUP * BYTES // STEP) + byte[None, :]
    row_at = rows + tl.minimum(row, count - 1)[None, :].to(tl.int64) * row_stride + byte[:, None]
    factor_at = factors + known * groups * (2 if MINIMA else 1)
    ones = tl.full((OUTPUTS, BYTES), 1.0, tl.float32).to(KIND)
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for _ in range(groups):
        found = tl.zeros((OUTPUTS, ROWS), tl.float32)
        sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
        for _ in tl.static_range(GROUP // STEP):
            stored = tl.load(code_at, eviction_policy="evict_first")
            given = tl.load(row_at)
            low = _numbers(stored & 15 if NIBBLES else stored, zero, KIND, FLOAT8)
            found = tl.dot(low, given, found, input_precision=PRECISION)
            if MINIMA:
                sums = tl.dot(ones, given, sums, input_precision=PRECISION)
            if NIBBLES:  # the high 4 bits are the codes of the second half of the step's inputs
                given = tl.load(row_at + BYTES)
                high = _numbers(stored >> 4, zero, KIND, FLOAT8)
                found = tl.dot(high, given, found, input_precision=PRECISION)
                if MINIMA:
                    sums = tl.dot(ones, given, sums, input_precision=PRECISION)
            code_at += BYTES
            row_at += STEP
        total += found * tl.load(factor_at)[:, None]
        if MINIMA:
            total += sums * tl.load(factor_at + 1)[:, None]
        factor_at += 2 if MINIMA else 1
    if BIAS:
        total += tl.load(bias + known).to(tl.float32)[:, None]
    at = out + row[None, :].to(tl.int64) * outputs + number[:, None]
    tl.store(at, total.to(KIND), mask=(row[None, :] < count) & (number[:, None] < outputs))


def linear(rows: torch.Tensor, codes: Codes, bias: torch.Tensor | None) -> torch.Tensor:
    """Return rows @ weight.T + bias, [rows, out]. The last dimension of the rows [rows, in] must be
    contiguous. The dequantized weight is not rounded to the dtype of the rows.
    """
    (count, inputs), outputs = rows.shape, len(codes.bytes)
    out = torch.empty(count, outputs, dtype=rows.dtype, device=rows.device)
    minima, full = codes.factors.shape[2] == 2, rows.dtype == torch.float32
    most = FEWER_ROWS if minima or full else MAX_ROWS
    wide = max(16, min(power_of_two(count), most))
    _linear_of_codes[(triton.cdiv(count, wide), triton.cdiv(outputs, OUTPUTS))](
        *(rows, codes.bytes, codes.factors, out if bias is None else bias, out),
        *(count, outputs, inputs // codes.group, codes.zero, rows.stride(0)),
        ROWS=wide,
        OUTPUTS=OUTPUTS,
        GROUP=codes.group,
        STEP=codes.step,
        FLOAT8=codes.code is Code.FLOAT8,
        NIBBLES=codes.code is Code.NIBBLES,
        MINIMA=minima,
        BIAS=bias is not None,
        PRECISION=precision(rows.dtype),
        num_warps=8 if full and wide == most else 4,
        num_stages=2 if full else 4 if wide < MAX_ROWS else 3,
        **STRICT,
    )
    return out
