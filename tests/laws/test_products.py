"""Layers that multiply by a weight of their own run in this project's kernels if the weight is
always the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import DeepseekV3Config, GptOssConfig, MixtralConfig, PhimoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter

from tandem.engine.forward.cpu.kernels import Kernels, kernels
from tandem.engine.forward.cpu.products import multiply_by_panels

WIDTH, EXPERTS = 300, 32
ROUTERS = {
    DeepseekV3TopkRouter: DeepseekV3Config(
        hidden_size=WIDTH, n_routed_experts=EXPERTS, n_group=1, topk_group=1
    ),
    GptOssTopKRouter: GptOssConfig(hidden_size=WIDTH, num_local_experts=EXPERTS),
    MixtralTopKRouter: MixtralConfig(hidden_size=WIDTH, num_local_experts=EXPERTS),
    PhimoeTopKRouter: PhimoeConfig(hidden_size=WIDTH, num_local_experts=EXPERTS),
}

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


def some_layer(kind: Callable[..., nn.Module], *given: object) -> nn.Module:
    torch.manual_seed(0)
    layer = kind(*given).requires_grad_(False).eval()
    for parameter in layer.parameters():
        parameter.normal_(0, 0.1)
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ROUTERS)
@torch.inference_mode()
def test_a_row_chooses_its_experts_by_the_same_bits_in_any_company(
    kind: Callable[..., nn.Module], dtype: torch.dtype, build: Kernels
) -> None:
    layer = some_layer(kind, ROUTERS[kind]).to(dtype)  # type: ignore[index]
    rows = torch.randn(70, WIDTH).to(dtype)
    expected = layer(rows)
    assert multiply_by_panels(layer)
    every = layer(rows)
    for own, theirs in zip(every, expected, strict=True):
        assert own.dtype == theirs.dtype and own.shape == theirs.shape
    off = (every[0].float() - expected[0].float()).abs().max()
    assert off <= 16 * torch.finfo(dtype).eps * expected[0].float().abs().max()
    for count in (1, 2, 33):
        for own, all_ in zip(layer(rows[-count:]), every, strict=True):
            assert torch.equal(own, all_[-count:])


class Grown(nn.Module):
    """A layer whose weight depends on the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, WIDTH))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.linear(rows, self.weight * rows.mean())


class Twice(nn.Module):
    """A layer with two weights of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = (nn.Parameter(torch.zeros(8, WIDTH)) for _ in range(2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.linear(rows, self.weight) + functional.linear(rows, self.other)


class Parent(nn.Linear):
    """A layer that contains another layer."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 8)
        self.inner = nn.Linear(WIDTH, 8)


@pytest.mark.parametrize("kind", [Grown, Twice, Parent, lambda: nn.Embedding(8, WIDTH)])
def test_what_does_not_multiply_with_the_one_weight_is_left_alone(
    kind: Callable[..., nn.Module], build: Kernels
) -> None:
    layer = some_layer(kind)
    assert not multiply_by_panels(layer)
    assert "forward" not in vars(layer)
