"""A draw that looks at few tokens is the draw that its definition makes of all of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.benchmarks.sampling import flat, peaked
from tandem.engine.sampling.candidates import draw_from_shortlist
from tandem.engine.sampling.noise import gumbel, ids_above, uniform
from tandem.engine.sampling.sampler import LARGE, draw, draws, probabilities, warp
from tandem.protos.types import SamplingParams
from tests.laws.rows import Kind, adjusted, options, rounded

VOCABULARY = 128_257
COMMON = [
    SamplingParams(1.0),
    SamplingParams(0.7),
    SamplingParams(0.8, top_k=50, top_p=0.95),
    SamplingParams(1.0, top_p=0.9),
    SamplingParams(1.3, top_p=0.3),
    SamplingParams(1.0, min_p=0.05),
    SamplingParams(1.0, min_p=1e-4, top_p=0.99),
    SamplingParams(1.0, top_k=2000),
]


@settings(max_examples=200)
@given(adjusted, options, st.integers(0, 2**20), st.integers(1, 300))
def test_what_is_drawn_is_what_the_definition_draws(
    row: torch.Tensor, params: SamplingParams, position: int, size: int
) -> None:
    token = draw_from_shortlist(row, params, position, size)
    assert token is None or [token] == draws(row[None], params, [position])


@pytest.mark.parametrize("kind", [flat, peaked, rounded])
@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_a_large_vocabulary_is_drawn_from_as_defined_in_any_company(
    kind: Kind, params: SamplingParams
) -> None:
    rows = torch.stack([kind(VOCABULARY, seed) for seed in range(2)])  # odd: rows lie unaligned
    places = range(100, 102)
    alone = [draw(row.clone(), params, place) for row, place in zip(rows, places, strict=True)]
    assert [draw(row, params, place) for row, place in zip(rows, places, strict=True)] == alone
    assert draws(rows, params, places) == alone


@pytest.mark.parametrize("kind", [flat, peaked, rounded])
@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_the_definition_is_rarely_asked(kind: Kind, params: SamplingParams) -> None:
    """It would be slow."""
    row = kind(VOCABULARY, 3)
    unsure = sum(draw_from_shortlist(row, params, position) is None for position in range(60))
    assert unsure <= 2


@settings(max_examples=100)
@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**20), st.integers(1, 3000), st.floats(-10.0, 30.0)
)
def test_no_token_with_more_noise_is_overlooked(
    seed: int, position: int, count: int, least: float
) -> None:
    ids, found = torch.arange(count), ids_above(seed, position, count, least)
    more = gumbel(seed, position, ids) > least
    assert set(ids[more].tolist()) <= set(found.tolist())
    enough = -math.expm1(-math.exp(0.001 - least))  # of the number that noise is made of
    assert (uniform(seed, position, found) <= enough + 2.0**-16).all()


@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_the_distribution_of_a_large_vocabulary_is_the_defined_one(params: SamplingParams) -> None:
    for row in (peaked(LARGE, 1), flat(LARGE, 2)):
        defined = warp(row[None].double(), params)[0].exp()
        assert (probabilities(row, params) - defined).abs().max() <= 1e-12
