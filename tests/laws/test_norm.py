"""Norms in this project's kernels are right and batch-invariant."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tandem.engine.forward.cpu.kernels import Kernels, kernels
from tandem.engine.forward.norm import RMSNorm, rms_norm

SIZES = (1, 7, 96, 100, 768)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


def made(kind: type[nn.Module], size: int, dtype: torch.dtype) -> tuple[nn.Module, RMSNorm]:
    """Return a layer of transformers with random weights, and its replacement."""
    torch.manual_seed(0)
    layer = kind(size).requires_grad_(False)
    layer.weight = nn.Parameter(torch.randn(size), requires_grad=False)
    own = rms_norm(layer.to(dtype))
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
    if kind is LlamaRMSNorm:  # the class LlamaRMSNorm computes in float32 for every dtype
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
    for build.threads in (1, 3):
        for count in (2, 3, 33, 257, 300):
            assert torch.equal(own(rows[-count:]), alone[-count:])


def test_rows_of_another_dtype_are_left_to_the_layer(build: Kernels) -> None:
    layer, own = made(LlamaRMSNorm, 96, torch.bfloat16)
    rows = torch.randn(3, 96)
    assert torch.equal(own(rows), layer(rows))


class Outside(LlamaRMSNorm):
    """A norm that adds its epsilon to the root."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        root = hidden_states.pow(2).mean(-1, keepdim=True).sqrt()
        return self.weight * hidden_states / (root + self.variance_epsilon)


class Clipping(LlamaRMSNorm):
    """A norm that clips its rows first."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(hidden_states.clamp(-50, 50))
        return out


class Asking(LlamaRMSNorm):
    """A norm that takes another argument besides the rows."""

    def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(hidden_states) * gate
        return out


def near_zero() -> nn.Module:
    """A norm around a mean whose weight hides the mean."""
    layer = nn.LayerNorm(96)
    nn.init.constant_(layer.weight, 1e-7)
    return layer


def hooked() -> nn.Module:
    """A norm whose output a hook changes."""
    layer = LlamaRMSNorm(96)
    layer.register_forward_hook(lambda module, given, out: 2 * out)
    return layer


OTHERS = {
    **{f"around a mean, {dtype}": nn.LayerNorm(256, dtype=dtype) for dtype in DTYPES},
    "of no rows' size": nn.Linear(4, 4),
    "without a weight": nn.Identity(),
    "weights near 0": near_zero(),
    "with a hook": hooked(),
    "epsilon outside": Outside(96),
    "clipped rows": Clipping(96),
    "one more argument": Asking(96),
}


@pytest.mark.parametrize("layer", OTHERS.values(), ids=OTHERS)
def test_a_layer_that_computes_something_else_is_left_alone(
    layer: nn.Module, build: Kernels
) -> None:
    """The kernel must also leave a layer alone that differs for some rows only, or in half
    precision hardly at all.
    """
    assert rms_norm(layer.requires_grad_(False)) is None


def test_rows_of_another_width_are_refused(build: Kernels) -> None:
    """With rows of another width, the kernel would read beyond the end of the weight."""
    _, own = made(LlamaRMSNorm, 64, torch.float32)
    with pytest.raises(RuntimeError, match="must match"):
        own(torch.randn(1, 128))
    with pytest.raises(RuntimeError, match="rows of size 128 do not match a weight of size 64"):
        build.norm(torch.randn(1, 128), torch.randn(64), 1e-6)
