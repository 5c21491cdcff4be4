"""Mixtures of experts in this project's kernels are right, and batch-invariant with any number of
threads.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import GptOssConfig, MixtralConfig, PreTrainedConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.llama4.modeling_llama4 import Llama4TextExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from tandem.engine.forward.cpu.experts import PanelExperts, panel_experts, trial_choices
from tandem.engine.forward.cpu.kernels import Kernels, kernels
from tandem.engine.forward.cpu.panels import PanelLinear
from tandem.engine.forward.equivalence import equivalent
from tandem.engine.model.grouping import round_linears

WIDTH, INNER, EXPERTS, TOP = 96, 32, 8, 3
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
SIZES = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_local_experts": EXPERTS}
CONFIGS: dict[type[nn.Module], type[PreTrainedConfig]] = {GptOssExperts: GptOssConfig}
LAYOUTS = [(MixtralExperts, "silu"), (MixtralExperts, "gelu"), (GptOssExperts, "silu")]

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


def some_layer(kind: Callable[..., nn.Module], act: str, dtype: torch.dtype) -> nn.Module:
    """Return a layer of transformers with random weights."""
    torch.manual_seed(0)
    config = CONFIGS.get(kind, MixtralConfig)(**SIZES, hidden_act=act)  # type: ignore[call-overload]
    config._experts_implementation = "grouped_mm"
    layer = kind(config).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.normal_(0, 0.3)
    return layer.to(dtype)


def some_rows(count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows, the experts that they go through, and the experts' weights."""
    torch.manual_seed(1)
    chosen = torch.rand(count, EXPERTS).topk(TOP)[1]
    return torch.randn(count, WIDTH).to(dtype), chosen, torch.rand(count, TOP).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kind", "act"), LAYOUTS)
def test_a_mixture_is_what_it_is_in_float64(
    kind: Callable[..., nn.Module], act: str, dtype: torch.dtype, build: Kernels
) -> None:
    """The test covers both layouts, with biases and the layer's own gate or without them."""
    double = some_layer(kind, act, dtype).double()
    double.config._experts_implementation = "eager"  # type: ignore[union-attr]
    rows, chosen, weights = some_rows(37, dtype)
    own = panel_experts(some_layer(kind, act, dtype), PanelLinear)
    assert own
    out, exact = own(rows, chosen, weights), double(rows.double(), chosen, weights.double())
    assert out.dtype == dtype
    assert (out.double() - exact).abs().max() <= ROUNDING[dtype] * exact.abs().max()
    assert own(rows[:0], chosen[:0], weights[:0]).shape == (0, WIDTH)


@pytest.mark.parametrize("seed", range(20))
def test_experts_that_clamp_are_found_however_their_sums_are_rounded(seed: int) -> None:
    """The clamped part is small compared to the sums, so that their rounding shows in the
    result.
    """
    layer = some_layer(GptOssExperts, "silu", torch.float32)
    layer.config._experts_implementation = "eager"  # type: ignore[union-attr]
    source = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.normal_(0, 0.02, generator=source)
    exact = deepcopy(layer).double()

    def otherwise(rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return exact(rows.double(), chosen, weights.double()).float()

    inner = layer.gate_up_proj.mT
    assert equivalent(layer, otherwise, inner, *trial_choices(inner))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("quantised", [False, True])
def test_a_row_has_the_same_bits_in_any_company_and_by_any_number_of_threads(
    quantised: bool, dtype: torch.dtype, build: Kernels
) -> None:
    """The test also sends many other rows to the same experts, more than are kept at once."""
    layer = some_layer(MixtralExperts, "silu", dtype)
    if quantised:
        round_linears(layer)
    own = panel_experts(layer, PanelLinear)
    assert own
    given = some_rows(300, dtype)
    alone = torch.cat([own(*(each[row : row + 1] for each in given)) for row in range(300)])
    for build.threads in (1, 2, 3):
        for count in (2, 33, 300):
            assert torch.equal(own(*(each[-count:] for each in given)), alone[-count:])


def test_weights_of_experts_are_rounded_to_8_bits_where_all_are(build: Kernels) -> None:
    rows = some_rows(20, torch.float32)
    full = panel_experts(some_layer(MixtralExperts, "silu", torch.float32), PanelLinear)
    layer = some_layer(MixtralExperts, "silu", torch.float32)
    round_linears(layer)
    small = panel_experts(layer, PanelLinear)
    assert full and small
    expected = full(*rows)
    assert 0 < (small(*rows) - expected).abs().max() < 0.1 * expected.abs().max()


def test_the_weights_are_held_once(build: Kernels) -> None:
    layer = some_layer(GptOssExperts, "silu", torch.float32)  # the layer's own gate is used
    assert panel_experts(layer, PanelLinear)
    assert {name for name, _ in layer.named_parameters()} == {"gate_up_proj_bias", "down_proj_bias"}


def test_all_threads_share_what_experts_multiply(
    build: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = panel_experts(some_layer(MixtralExperts, "silu", torch.float32), PanelLinear)
    linear, asked = build._linear, list[int]()
    assert own

    def counted(*given: Any) -> None:
        asked.append(given[-1])
        linear(*given)

    monkeypatch.setattr(build, "_linear", counted)
    build.threads = 3
    own(*some_rows(20, torch.float32))
    assert asked == [3, 3], "the inner and the outer layers of all experts, in a call each"


class Backwards(MixtralExperts):
    """Experts that take the other half of their input projection as the gate."""

    def _apply_gate(self, wide: torch.Tensor) -> torch.Tensor:
        first, second = wide.chunk(2, -1)
        return first * functional.silu(second) * 2


class Normal(MixtralExperts):
    """Experts whose weights are normalised to a sum of 1."""

    def forward(self, *given: Any) -> torch.Tensor:
        rows, chosen, weights = given
        out: torch.Tensor = super().forward(rows, chosen, weights / weights.sum(-1, keepdim=True))
        return out


class Clamped(MixtralExperts):
    """Experts whose output is bounded at a value that few rows reach."""

    def forward(self, *given: Any) -> torch.Tensor:
        out: torch.Tensor = super().forward(*given).clamp(-50, 50)
        return out


@pytest.mark.parametrize("kind", [Normal, Clamped, Llama4TextExperts])
def test_a_layer_that_computes_something_else_is_left_alone(
    kind: Callable[..., nn.Module], build: Kernels
) -> None:
    layer = some_layer(kind, "silu", torch.float32)
    before = dict(layer.named_parameters())
    assert panel_experts(layer, PanelLinear) is None
    assert dict(layer.named_parameters()).keys() == before.keys() >= {"gate_up_proj", "down_proj"}
    assert panel_experts(nn.Linear(4, 4), PanelLinear) is None


def test_a_gate_of_the_layers_own_is_used_as_it_is(build: Kernels) -> None:
    layer, rows = some_layer(Backwards, "silu", torch.float32), some_rows(20, torch.float32)
    expected = layer(*rows)
    own = panel_experts(layer, PanelLinear)
    assert isinstance(own, PanelExperts)
    assert torch.allclose(own(*rows), expected, rtol=1e-4, atol=1e-4)
