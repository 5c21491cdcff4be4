"""On a CUDA device, the kernel draws the same tokens as the definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tandem.benchmarks.sampling import flat, peaked
from tandem.engine.sampling import drawing
from tandem.engine.sampling.device_draws import NAN, UNSURE
from tandem.engine.sampling.drawing import Rows, decided, draw_batch
from tandem.engine.sampling.sampler import draws
from tandem.protos.types import SamplingParams

VOCABULARY = 128_256
OPTIONS = [
    SamplingParams(),
    SamplingParams(0.7, seed=7),
    SamplingParams(1.0, seed=2**64 - 1),
    SamplingParams(0.7, top_k=20, top_p=0.8, seed=3),
    SamplingParams(1.0, top_p=0.95, seed=4),
    SamplingParams(1.3, top_p=0.3, seed=5),
    SamplingParams(1.0, min_p=0.05, seed=6),
    SamplingParams(1.5, top_k=2000, seed=8),
    SamplingParams(0.01, min_p=1e-4, top_p=0.99, seed=9),
]


def rounded(count: int, seed: int) -> torch.Tensor:
    """Return a row with many equal logits, as a model that computes in bfloat16 makes it."""
    return (peaked(count, seed) + 20.0).bfloat16().float()


def rows_of(kind: Callable[[int, int], torch.Tensor], count: int) -> torch.Tensor:
    """Return rows on the device, [count, vocab]."""
    return torch.stack([kind(VOCABULARY, seed) for seed in range(count)]).cuda()


def test_the_kernel_can_be_used() -> None:
    assert drawing.prepare(torch.device("cuda", 0), VOCABULARY) is None


@pytest.mark.parametrize("kind", [flat, peaked, rounded])
@pytest.mark.parametrize("params", OPTIONS, ids=repr)
def test_a_thousand_rows_are_drawn_from_as_defined(
    kind: Callable[[int, int], torch.Tensor], params: SamplingParams
) -> None:
    rows, left = rows_of(kind, 16), 0
    for start in range(0, 1024, 16):
        each = Rows(rows, params, range(start, start + 16))
        codes = draw_batch([each])[0].tolist()
        assert decided(each, codes) == draws(rows, params, range(start, start + 16))
        left += codes.count(UNSURE)
    # a row is left over if its last likely logits are equal
    assert left <= (512 if kind is rounded else 80)


def test_a_row_is_drawn_from_in_any_company_as_alone() -> None:
    rows = rows_of(peaked, len(OPTIONS))
    batch = [
        Rows(row.expand(9, -1), params, range(9)) for row, params in zip(rows, OPTIONS, strict=True)
    ]
    for each, together in zip(batch, draw_batch(batch), strict=True):
        for place in range(9):
            one = Rows(each.logits[:1], each.params, (place,))
            assert draw_batch([one])[0].tolist() == [int(together[place])]


def test_rows_that_are_not_finite_are_left_to_the_definition() -> None:
    rows = rows_of(flat, 4)
    rows[0, 4000], rows[1, -1], rows[2] = torch.nan, torch.inf, -torch.inf
    for params in OPTIONS[:4]:
        each = Rows(rows, params, range(4))
        codes = draw_batch([each])[0].tolist()
        assert codes[:3] == [NAN, UNSURE, UNSURE] and codes[3] >= 0
        assert decided(each, codes) == draws(rows, params, range(4))
