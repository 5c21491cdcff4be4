"""Packed layers: a row has the same bits in any company, with whatever kernels a processor has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine import packed
from engine.packed import BASE, LEAST, MOST, SIZES, PackedLinear, agreeing, can_pack

SHAPES = [(96, 96), (768, 768), (200, 1100)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """One that this processor has kernels for."""
    found: torch.dtype = request.param
    if not can_pack(found, torch.device("cpu")):
        pytest.skip(f"no kernels for packed weights of {found}")
    return found


def layer(shape: tuple[int, int], dtype: torch.dtype) -> tuple[PackedLinear, torch.Tensor]:
    """A dense layer and its weight."""
    weight = torch.randn(shape).to(dtype)
    return PackedLinear(weight, None), weight


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.inference_mode()
def test_a_row_has_the_same_bits_in_any_company(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dense, weight = layer(shape, dtype)
    rows = torch.randn(2 * MOST + 1, shape[1]).to(dtype)
    every = dense(rows)
    assert torch.allclose(every.float(), F.linear(rows, weight).float(), rtol=0.05, atol=0.5)
    for count in (1, 2, 3, *range(LEAST, 70), 100, 129, 200, MOST, MOST + 1, 300):
        assert torch.equal(dense(rows[:count]), every[:count]), f"{count} rows"
        assert torch.equal(dense(rows[None, -count:])[0], every[-count:]), f"the last {count} rows"


@torch.inference_mode()
def test_where_kernels_disagree_only_sizes_that_agree_are_multiplied_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A processor whose kernels round differently up to 32 rows and at 192."""
    multiplied: list[int] = []

    def disagreeing(
        rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        multiplied.append(len(rows))
        return F.linear(rows, weight, bias) + (len(rows) <= 32 or len(rows) == 192)

    monkeypatch.setattr(packed, "pack", torch.Tensor.contiguous)
    monkeypatch.setattr(packed, "multiply", disagreeing)
    agreeing.cache_clear()
    dense, weight = layer((64, 64), torch.float32)
    agreeing.cache_clear()
    assert dense.sizes == tuple(size for size in SIZES if size != 192)
    rows = torch.randn(MOST + 60, 64)
    for count, expected in [(1, [BASE]), (100, [128]), (150, [MOST]), (316, [MOST, 64])]:
        multiplied.clear()
        out = dense(rows[:count])
        assert torch.allclose(out, F.linear(rows[:count], weight), atol=1e-4)
        assert multiplied == expected
