"""What a list of the likeliest tokens says of a whole row, beside transformers' warpers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.benchmarks.sampling import flat, peaked
from tandem.engine.sampling.sampler import LARGE, leading, logprobs, warp
from tandem.engine.sampling.shortlist import COLUMNS, Shortlist, likeliest
from tandem.protos.types import SamplingParams
from tests.laws.rows import Kind, adjusted, options, rounded, steps


@settings(max_examples=200)
@given(adjusted, options, st.integers(1, 300))
def test_what_is_said_to_be_kept_is_what_the_warpers_keep(
    row: torch.Tensor, params: SamplingParams, size: int
) -> None:
    short = Shortlist(row, params, size)
    kept = set(warp(row[None], params)[0].isfinite().nonzero().flatten().tolist())
    possible = short.ids[: short.possible].tolist()
    finite = {token for token in possible if row[token] > -torch.inf}
    assert finite & set(possible[: short.sure]) <= kept
    if short.whole:
        assert kept <= set(possible)
        return
    for token in sorted(set(range(len(row))) - set(short.ids.tolist()))[::37]:
        if (verdict := short.keeps(token)) is not None and row[token] > -torch.inf:
            assert verdict == (token in kept)


@given(adjusted, st.integers(1, 4000))
def test_the_likeliest_come_first_and_none_is_missing(row: torch.Tensor, count: int) -> None:
    assert_likeliest(row, count)


@pytest.mark.parametrize("kind", [flat, peaked, rounded, steps])
@pytest.mark.parametrize("rows", [2, 3.5, 31])
@pytest.mark.parametrize("count", [1, 20, 256, COLUMNS])
def test_the_likeliest_of_a_large_row_come_first(kind: Kind, rows: float, count: int) -> None:
    assert_likeliest(kind(int(rows * COLUMNS), 4), count)


def assert_likeliest(row: torch.Tensor, count: int) -> None:
    """Sorted by logit, among equals by id, and complete down to some logit."""
    ids = likeliest(row, count)
    order = row.sort(descending=True, stable=True).indices
    assert len(ids) >= min(count, len(row))
    assert torch.equal(ids, order[: len(ids)])
    assert len(ids) == len(row) or row[order[len(ids)]] < row[ids[-1]]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(0.7),
        SamplingParams(1.0, top_p=0.8),
        SamplingParams(1.0, top_k=40, min_p=0.01),
        SamplingParams(0.0),
    ],
    ids=repr,
)
def test_the_leading_tokens_of_a_large_vocabulary_have_their_log_probabilities(
    params: SamplingParams,
) -> None:
    rows = torch.stack([peaked(LARGE, seed) for seed in range(3)])
    ids, found = leading(rows, params, 64)
    expected = warp(rows, params).topk(64)
    likely = expected.values > -torch.inf
    assert torch.equal(ids[likely], expected.indices[likely])
    assert torch.allclose(found, expected.values, atol=1e-4)


def test_leading_tokens_of_a_nucleus_that_is_longer_are_about_as_likely() -> None:
    rows, params = flat(LARGE, 1)[None], SamplingParams(1.0, top_p=0.9)
    found, expected = leading(rows, params, 64)[1], warp(rows, params).topk(64).values
    assert torch.allclose(found, expected, atol=1e-3)


def test_the_log_probabilities_of_a_large_vocabulary_are_the_models_own() -> None:
    row = peaked(LARGE, 2)
    told, scores = logprobs(row, 17, 20), row.log_softmax(-1)
    top = scores.topk(20)
    assert told.logprob == scores[17]
    assert told.top == tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    assert logprobs(row, 17, 0).top == ()
