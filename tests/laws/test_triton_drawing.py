"""The kernel for CUDA devices draws the same tokens as the definition, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.benchmarks.sampling import flat, peaked
from tandem.engine.forward.cuda.kernels import drawing as kernel
from tandem.engine.forward.cuda.kernels.noise import exponential
from tandem.engine.sampling.device_draws import NAN, UNSURE
from tandem.engine.sampling.drawing import Rows, decided, draw_batch
from tandem.engine.sampling.noise import gumbel, keys
from tandem.engine.sampling.sampler import draws
from tandem.protos.types import SamplingParams
from tests.interpreted import interpreted
from tests.laws.rows import KINDS, adjusted, options, rounded

pytestmark = [interpreted, pytest.mark.usefixtures("drawn_as_on_a_device")]

COMMON = [
    SamplingParams(),
    SamplingParams(0.7, seed=7),
    SamplingParams(1.0, seed=2**64 - 1),
    SamplingParams(0.8, top_k=50, top_p=0.95),
    SamplingParams(1.0, top_p=0.9),
    SamplingParams(1.3, top_p=0.3),
    SamplingParams(1.0, min_p=0.05),
    SamplingParams(0.01, min_p=1e-4, top_p=0.99),
    SamplingParams(1.0, top_k=2000),
    SamplingParams(1e-30),
]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each row a single part, because the interpreter runs parts one after the other."""
    monkeypatch.setattr(kernel, "PART", 8192)
    monkeypatch.setattr(kernel, "CHUNK", 8192)


def assert_as_defined(rows: torch.Tensor, params: SamplingParams, places: Sequence[int]) -> int:
    """Check that the tokens are those of the definition; return how many rows are left to the
    definition.
    """
    each = Rows(rows, params, places)
    codes = draw_batch([each])[0].tolist()
    assert decided(each, codes) == draws(rows, params, places)
    return codes.count(UNSURE)


@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_rows_are_drawn_from_as_defined(params: SamplingParams) -> None:
    rows = torch.stack([KINDS[seed % 6](5000, seed) for seed in range(12)])
    assert_as_defined(rows, params, range(1000, 1012))


@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_a_large_vocabulary_is_drawn_from_as_defined(params: SamplingParams) -> None:
    rows = torch.stack([flat(40_001, 1), rounded(40_001, 2)])  # rows lie unaligned in memory
    assert_as_defined(rows, params, (3, 2**31))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(adjusted, options, st.integers(0, 2**20))
def test_any_row_is_drawn_from_as_defined(
    row: torch.Tensor, params: SamplingParams, position: int
) -> None:
    assert_as_defined(row[None], params, (position,))


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("params", [COMMON[1], COMMON[3], COMMON[4]], ids=repr)
def test_the_definition_is_rarely_asked(params: SamplingParams) -> None:
    rows = torch.stack([flat(5000, 1), peaked(5000, 2)]).repeat(40, 1)
    assert assert_as_defined(rows, params, range(80)) <= 2


@pytest.mark.usefixtures("whole")
@pytest.mark.long("interprets ten thousand draws")
@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_a_thousand_rows_are_drawn_from_as_defined(params: SamplingParams) -> None:
    for start in range(0, 1000, 50):
        rows = torch.stack([KINDS[seed % 5](5000, seed) for seed in range(start, start + 50)])
        assert_as_defined(rows, params, range(start, start + 50))


def test_sessions_with_different_options_are_drawn_for_at_once_as_alone() -> None:
    batch = [
        Rows(torch.stack([kind(3000, seed) for seed in range(2)]), params, (seed, seed + 9))
        for seed, (kind, params) in enumerate(zip(KINDS, COMMON, strict=False))
    ]
    for rows, tokens in zip(batch, draw_batch(batch), strict=True):
        for row, place, token in zip(rows.logits, rows.positions, tokens, strict=True):
            (alone,) = draw_batch([Rows(row.clone()[None], rows.params, (place,))])
            assert alone.tolist() == [token]


def test_rows_may_lie_apart() -> None:
    wide = torch.stack([flat(6000, seed) for seed in range(6)])
    assert assert_as_defined(wide[::2, 500:5500], COMMON[1], range(3)) == 0


@pytest.mark.parametrize("places", [(5, 9), (100, 4000), (2047, 2048), (4999, 0)])
def test_of_the_likeliest_the_lowest_is_taken(places: tuple[int, int]) -> None:
    row = flat(5000, 3)
    row[list(places)] = 50.0
    assert draw_batch([Rows(row[None], SamplingParams(), (0,))])[0].tolist() == [min(places)]


def test_what_rounding_makes_equal_is_left_to_the_definition() -> None:
    """The sums of score and noise of two tokens are equal except for rounding."""
    noise = gumbel(0, 0, torch.arange(5000))
    row = -noise  # makes all sums nearly equal
    row[[70, 3000]] += 1.0
    assert assert_as_defined(row[None], SamplingParams(1.0), (0,)) == 1


@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_a_token_that_alone_is_possible_is_drawn(params: SamplingParams) -> None:
    row = torch.full((5000,), -torch.inf)
    row[4321] = -3.0
    assert draw_batch([Rows(row[None], params, (7,))])[0].tolist() == [4321]


@pytest.mark.parametrize("params", COMMON[:4], ids=repr)
def test_rows_that_are_not_finite_are_left_to_the_definition(params: SamplingParams) -> None:
    rows = torch.stack([flat(5000, seed) for seed in range(5)])
    rows[0, 4000], rows[1, 4999] = torch.nan, torch.inf
    rows[2], rows[3, [1, 3000]] = -torch.inf, torch.tensor([torch.nan, torch.inf])
    each = Rows(rows, params, range(5))
    codes = draw_batch([each])[0].tolist()
    assert codes[:4] == [NAN, UNSURE, UNSURE, NAN] and codes[4] >= 0
    assert decided(each, codes) == draws(rows, params, range(5))


@triton.jit
def _noise(to: Any, low: Any, high: Any, COUNT: tl.constexpr) -> None:
    """Write the kernel's noise for the first tokens to `to`."""
    ids = tl.arange(0, COUNT)
    low, high = low.to(tl.uint32, bitcast=True), high.to(tl.uint32, bitcast=True)
    tl.store(to + ids, -tl.log(exponential(ids, low, high)))


@pytest.mark.parametrize("seed", range(3))
def test_the_noise_is_that_of_the_definition_but_for_rounding(seed: int) -> None:
    count = 2**20
    found, (low, high) = torch.empty(count), keys([seed], [99])[0].tolist()
    _noise[(1,)](found, low, high, count)
    defined = gumbel(seed, 99, torch.arange(count))
    assert (found - defined).abs().max() < 4e-6
    # the values include both tails of the distribution
    assert defined.max() > 12 and defined.min() < -2.5
