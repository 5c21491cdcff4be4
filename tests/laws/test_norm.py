"""Norms by our own kernels: right, and a row has the same bits in any company."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from engine.forward.cpu.kernels import Kernels, kernels
from engine.forward.cpu.norm import Norm, norm

SIZES = (1, 7, 96, 100, 768)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


def made(kind: type[nn.Module], size: int, dtype: torch.dtype) -> tuple[nn.Module, Norm]:
    """A layer of transformers with some weight, and ours."""
    torch.manual_seed(0)
    layer = kind(size).requires_grad_(False)
    layer.weight = nn.Parameter(torch.randn(size), requires_grad=False)
    own = norm(layer.to(dtype))
    assert own
    return layer, own


@pytest.mark.parametrize("kind", [LlamaRMSNorm, GemmaRMSNorm])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_norm_is_what_it_is_in_float64(
    kind: type[nn.Module], size: int, dtype: torch.dtype, build: Kernels
) -> None:
    layer, own = made(kind, size, dtype)
    rows = (10 * torch.randn(2, 5, size)).to(dtype)
    exact = layer.double()(rows.double())
    if kind is LlamaRMSNorm:  # which computes in float32 whatever it is given
        scale = (rows.double().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        exact = rows.double() * scale * layer.weight
    out = own(rows)
    assert out.dtype == dtype and out.shape == rows.shape
    assert ((out.double() - exact).abs() <= ROUNDING[dtype] * (exact.abs() + 1e-3)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_row_has_the_same_bits_in_any_company_and_by_any_number_of_threads(
    size: int, dtype: torch.dtype, build: Kernels
) -> None:
    _, own = made(LlamaRMSNorm, size, dtype)
    rows = torch.randn(300, size).to(dtype)
    alone = torch.cat([own(row[None]) for row in rows])
    for number in (1, 2, 3):
        build.threads = number
        for count in (2, 3, 33, 257, 300):
            assert torch.equal(own(rows[-count:]), alone[-count:])


def test_layers_that_compute_something_else_are_left_alone(build: Kernels) -> None:
    """Norms around a mean, in half precision too, where they nearly agree on rows without one."""
    for dtype in DTYPES:
        assert norm(nn.LayerNorm(256, dtype=dtype)) is None
    assert norm(nn.Linear(4, 4)) is None
    assert norm(nn.Identity()) is None


def test_rows_of_another_dtype_are_left_to_the_layer(build: Kernels) -> None:
    layer, own = made(LlamaRMSNorm, 96, torch.bfloat16)
    rows = torch.randn(3, 96)
    assert torch.equal(own(rows), layer(rows))
