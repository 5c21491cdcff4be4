"""Linear layers packed by the definitions of GPTQ, AWQ and compressed-tensors, field by field:
random codes, and the numbers that they stand for.
"""

from __future__ import annotations

from typing import Any

import torch

GROUP = 32
FIELDS = (0, 2, 4, 6, 1, 3, 5, 7)  # the outputs in a word of AWQ, the lowest bits first
Shape = tuple[int, int]  # outputs and inputs of a linear layer
# the last item is the numbers
Packed = tuple[dict[str, torch.Tensor], dict[str, Any], torch.Tensor]


def words(codes: torch.Tensor, bits: int, fields: tuple[int, ...] | None = None) -> torch.Tensor:
    """Pack codes [rows, n] into words of 32 bits, [rows, n / codes per word], one after the
    other.
    """
    each = 32 // bits
    order = fields or tuple(range(each))
    made = torch.zeros(codes.shape[0], codes.shape[1] // each, dtype=torch.int64)
    for field, place in enumerate(order):
        made |= codes.long()[:, place::each] << bits * field
    return torch.where(made >= 1 << 31, made - (1 << 32), made).int()


def drawn(shape: Shape, bits: int, same: bool, mixed: bool) -> tuple[torch.Tensor, ...]:
    """Return codes [out, in], zeros and scales [out, groups], the group of each input, and the
    numbers.
    """
    torch.manual_seed(bits + same)
    outputs, inputs = shape
    most = 2**bits
    codes = torch.randint(0, most, shape)
    zeros = torch.randint(0, most, (outputs, inputs // GROUP))
    if same:
        zeros[:] = most // 2
    scales = ((torch.rand(zeros.shape) + 0.5) / most / 8).half()
    of = torch.arange(inputs) // GROUP
    if mixed:
        of = of[torch.randperm(inputs)]
    return codes, zeros, scales, of, (codes - zeros[:, of]).float() * scales.float()[:, of]


def in_gptq(
    shape: Shape, bits: int, same: bool, version: str = "gptq", mixed: bool = False
) -> Packed:
    codes, zeros, scales, of, numbers = drawn(shape, bits, same, mixed)
    stored = zeros - 1 if version == "gptq" else zeros
    tensors = {
        "qweight": words(codes, bits).t().contiguous(),
        "qzeros": words(stored.t() % 2**bits, bits),
        "scales": scales.t().contiguous(),
        "g_idx": of.int(),
    }
    return tensors, {"quant_method": "gptq", "checkpoint_format": version}, numbers


def in_awq(shape: Shape) -> Packed:
    codes, zeros, scales, _, numbers = drawn(shape, 4, False, False)
    tensors = {
        "qweight": words(codes.t(), 4, FIELDS),
        "qzeros": words(zeros.t(), 4, FIELDS),
        "scales": scales.t().contiguous(),
    }
    return tensors, {"quant_method": "awq", "version": "GEMM"}, numbers


COMPRESSED = {"quant_method": "compressed-tensors"}


def in_words(shape: Shape, bits: int, same: bool, mixed: bool = False) -> Packed:
    codes, zeros, scales, of, _ = drawn(shape, bits, same, mixed)
    tensors = {
        "weight_packed": words(codes, bits),
        "weight_scale": scales.bfloat16(),
        "weight_shape": torch.tensor(shape),
    }
    if mixed:
        tensors["weight_g_idx"] = of.int()
    if not same:
        tensors["weight_zero_point"] = words(zeros.t(), bits).t().contiguous()
    exact = (codes - zeros[:, of]).float() * scales.bfloat16().float()[:, of]
    return tensors, COMPRESSED, exact


def in_int8(shape: Shape, rows: int, groups: int, zeros: bool = False) -> Packed:
    """Return int8 weights with a scale per so many rows of outputs and groups of inputs."""
    torch.manual_seed(0)
    codes = torch.randint(-128, 128, shape, dtype=torch.int8)
    scales = torch.rand(rows, groups) / 1000
    tensors = {"weight": codes, "weight_scale": scales}
    lacks = torch.zeros(rows, groups, dtype=torch.int8)
    if zeros:
        lacks = torch.randint(-128, 128, (rows, groups), dtype=torch.int8)
        tensors["weight_zero_point"] = lacks
    of = torch.arange(shape[1]) // (shape[1] // groups)
    wide = [each.expand(shape[0], groups)[:, of] for each in (scales, lacks)]
    return tensors, COMPRESSED, (codes.float() - wide[1].float()) * wide[0]


def in_float8(shape: Shape, rows: int, columns: int) -> Packed:
    """Return float8 weights with a scale per block of this many outputs and inputs."""
    torch.manual_seed(0)
    codes = torch.randn(shape).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-shape[0] // rows), -(-shape[1] // columns)) / 100
    wide = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: shape[0], : shape[1]]
    weights = {"block_structure": [rows, columns]}
    config = COMPRESSED | {"config_groups": {"group_0": {"weights": weights}}}
    return {"weight": codes, "weight_scale": scales}, config, codes.float() * wide
