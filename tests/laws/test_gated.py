"""Gated layers in this project's kernels are right and batch-invariant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import ArceeConfig, LlamaConfig, Phi3Config
from transformers.models.arcee.modeling_arcee import ArceeMLP
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from tandem.engine.forward.cpu.kernels import Activation, Kernels, kernels
from tandem.engine.forward.cpu.panels import PanelLinear
from tandem.engine.forward.gated import GatedMLP, gated_mlp

WIDTH = 96
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
ACTIVATIONS = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


def made(
    act: str, inner: int, dtype: torch.dtype, biased: bool = False
) -> tuple[nn.Module, GatedMLP]:
    """Return a layer of transformers and its replacement."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=inner, hidden_act=act, mlp_bias=biased
    )
    layer = LlamaMLP(config).requires_grad_(False).to(dtype)
    own = gated_mlp(layer, PanelLinear)
    assert own
    return layer, own


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("inner", "biased"), [(1, True), (100, True), (100, False)])
def test_a_gated_layer_is_what_it_is_in_float64(
    act: str, dtype: torch.dtype, inner: int, biased: bool, build: Kernels
) -> None:
    layer, own = made(act, inner, dtype, biased)
    rows = (3 * torch.randn(2, 5, WIDTH)).to(dtype)
    out, exact = own(rows), layer.double()(rows.double())
    assert out.dtype == dtype and out.shape == rows.shape
    assert (out.double() - exact).abs().max() <= ROUNDING[dtype] * exact.abs().max()
    assert own(rows[:0]).shape == rows[:0].shape


def test_both_halves_may_be_one_layer(build: Kernels) -> None:
    config = Phi3Config(hidden_size=WIDTH, intermediate_size=64, pad_token_id=0)
    layer = Phi3MLP(config).requires_grad_(False)
    own, rows = gated_mlp(layer, PanelLinear), torch.randn(3, WIDTH)
    assert own and torch.allclose(own(rows), layer(rows), atol=1e-6)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 100])
def test_a_number_has_the_same_bits_in_any_company_and_by_any_number_of_threads(
    activation: Activation, dtype: torch.dtype, size: int, build: Kernels
) -> None:
    rows = (4 * torch.randn(40, 2 * size)).to(dtype)
    alone = torch.cat([build.gate(row[None], activation) for row in rows])
    for number in (1, 2, 3):
        build.threads = number
        for count in (2, 33, 40):
            there = build.gate(rows[-count:].contiguous(), activation)
            assert torch.equal(there, alone[-count:])


@pytest.mark.parametrize("activation", Activation)
def test_gates_far_from_0_are_open_or_shut(activation: Activation, build: Kernels) -> None:
    gates = torch.tensor([-1e30, -200.0, -90.0, 0.0, 90.0, 200.0])
    rows = torch.cat([gates, torch.full((6,), 2.0)])[None]
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0, 180.0, 400.0]])
    assert torch.allclose(build.gate(rows, activation), expected, atol=1e-30)
    rows[0, 3] = torch.nan
    assert build.gate(rows, activation).isnan().tolist() == [
        [False, False, False, True] + [False] * 2
    ]


class Backwards(LlamaMLP):
    """A layer that takes the other half of its projection as the gate."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))
        return out


class Clamped(LlamaMLP):
    """A layer whose gate is bounded at a value that few rows reach."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        for part in (self.gate_proj, self.up_proj):
            nn.init.normal_(part.weight, 0, 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.act_fn(self.gate_proj(x)).clamp(max=7)
        out: torch.Tensor = self.down_proj(gate * self.up_proj(x).clamp(-7, 7))
        return out


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        (LlamaMLP, "relu"),
        (LlamaMLP, "gelu"),
        (Backwards, "silu"),
        (Clamped, "silu"),
        (ArceeMLP, "silu"),
        (ArceeMLP, "gelu_pytorch_tanh"),
    ],
)
def test_a_layer_that_computes_something_else_is_left_alone(
    kind: Callable[..., nn.Module], act: str
) -> None:
    config = ArceeConfig if kind is ArceeMLP else LlamaConfig
    layer = kind(config(hidden_size=WIDTH, intermediate_size=64, hidden_act=act))
    assert gated_mlp(layer.requires_grad_(False), PanelLinear) is None
    assert gated_mlp(nn.Linear(4, 4), PanelLinear) is None


def test_rows_that_have_no_halves_are_refused(build: Kernels) -> None:
    with pytest.raises(RuntimeError, match="rows of odd size 7 cannot be split into halves"):
        build.gate(torch.randn(2, 7), Activation.SILU)
