"""The kernel draws the same tokens as the definition and finds the same likeliest tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.benchmarks.sampling import flat, peaked
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.sampling import drawing
from tandem.engine.sampling.device_draws import NAN
from tandem.engine.sampling.drawing import Rows, decided, draw, draw_batch
from tandem.engine.sampling.likeliest import leading, logprobs
from tandem.engine.sampling.sampler import draw_rows, draws, warp
from tandem.protos.types import SamplingParams
from tests.laws.rows import KINDS, Kind, adjusted, options, rounded, steps

pytestmark = pytest.mark.skipif(not kernels(), reason="no kernels were built")

LARGE = 152_001  # odd, so that rows lie unaligned in memory
COMMON = [
    SamplingParams(),
    SamplingParams(0.7),
    SamplingParams(0.8, top_k=50, top_p=0.95),
    SamplingParams(1.0, top_p=0.9),
    SamplingParams(1.3, top_p=0.3),
    SamplingParams(1.0, min_p=0.05),
    SamplingParams(1.0, min_p=1e-4, top_p=0.99),
    SamplingParams(1.0, top_k=2000),
]


def unsure(rows: torch.Tensor, params: SamplingParams) -> int:
    """Return for how many rows the kernel leaves the draw to the definition."""
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "draw_rows", lambda *row: asked.append(row) or draw_rows(*row))
        each = Rows(rows, params, range(len(rows)))
        decided(each, draw_batch([each])[0].tolist())
    return len(asked)


@settings(max_examples=200)
@given(adjusted, options, st.integers(0, 2**20))
def test_what_is_drawn_is_what_the_definition_draws(
    row: torch.Tensor, params: SamplingParams, position: int
) -> None:
    assert draw(row, params, position) == draws(row[None], params, [position])[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_many_rows_are_drawn_from_as_defined(kind: Kind, params: SamplingParams) -> None:
    rows = torch.stack([kind(4096, seed) for seed in range(8)]).repeat(4, 1)
    (drawn,) = draw_batch([Rows(rows, params, range(32))])
    assert drawn.tolist() == draws(rows, params, range(32))


@pytest.mark.long("sorts ten thousand vocabularies")
@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_ten_thousand_rows_are_drawn_from_as_defined(params: SamplingParams) -> None:
    for start in range(0, 1250, 50):
        rows = torch.stack([KINDS[seed % 5](4096, seed) for seed in range(start, start + 50)])
        places = range(start, start + 50)
        assert draw_batch([Rows(rows, params, places)])[0].tolist() == draws(rows, params, places)


@pytest.mark.parametrize("kind", [flat, peaked, rounded])
@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_a_large_vocabulary_is_drawn_from_as_defined_in_any_company(
    kind: Kind, params: SamplingParams
) -> None:
    rows, places = torch.stack([kind(LARGE, seed) for seed in range(2)]), range(100, 102)
    alone = [draw(row.clone(), params, place) for row, place in zip(rows, places, strict=True)]
    batch = [Rows(rows, params, places), Rows(rows[1:], SamplingParams(), (3,))]
    assert [each.tolist() for each in draw_batch(batch)] == [alone, [int(rows[1].argmax())]]
    assert draws(rows, params, places) == alone


def test_the_number_of_threads_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, params = torch.stack([flat(LARGE, seed) for seed in range(5)]), COMMON[3]
    build, found = kernels(), []
    for threads in (1, 2, 4):
        monkeypatch.setattr(build, "threads", threads)
        found.append(draw_batch([Rows(rows, params, range(5))])[0].tolist())
    assert found[1:] == found[:1] * 2


@pytest.mark.parametrize("kind", [flat, peaked, rounded])
@pytest.mark.parametrize("params", COMMON, ids=repr)
def test_the_definition_is_rarely_asked(kind: Kind, params: SamplingParams) -> None:
    """Asking the definition often would be slow. The kernel leaves the choice among equal logits at
    the edge of a nucleus to the definition, and `rounded` has many equal logits.
    """
    rows = kind(16_384, 3).expand(60, -1)
    assert unsure(rows, params) <= (15 if kind is rounded else 2)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_without_a_likeliest_token_is_left_to_the_definition(bad: float) -> None:
    rows = torch.stack([flat(500, 1), flat(500, 2)])
    rows[0, 77] = bad
    assert unsure(rows, SamplingParams(1.0)) == 1
    assert unsure(torch.full((1, 70), -torch.inf), SamplingParams()) == 1


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(0.7)], ids=repr)
def test_what_is_not_a_number_is_seen_in_any_batch_and_drawn_from_as_defined(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.stack([flat(500, 1), flat(500, 2)])
    rows[1, 77] = torch.nan
    each = Rows(rows, params, range(2))
    for known in (kernels(), None):
        monkeypatch.setattr(drawing, "kernels", lambda known=known: known)
        (drawn,) = draw_batch([each])
        assert drawn[0] >= 0 and drawn[1] == NAN
        assert decided(each, drawn.tolist()) == draws(rows, params, range(2))


@given(adjusted, st.integers(1, 400))
def test_the_likeliest_come_first_and_among_equals_the_lowest(
    row: torch.Tensor, count: int
) -> None:
    assert_likeliest(row, count)


@pytest.mark.parametrize("kind", [flat, peaked, rounded, steps])
@pytest.mark.parametrize("count", [1, 20, 256, 4096])
def test_the_likeliest_of_a_large_vocabulary_come_first(kind: Kind, count: int) -> None:
    assert_likeliest(kind(LARGE, 4), count)


def assert_likeliest(row: torch.Tensor, count: int) -> None:
    """Check the likeliest tokens, sorted by logit and among equal logits by id."""
    ids = leading(row[None], SamplingParams(1.0), count)[0][0]
    assert torch.equal(ids, row.sort(descending=True, stable=True).indices[:count])


@pytest.mark.parametrize("size", [700, 16_384])
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
def test_the_leading_tokens_have_their_log_probabilities(size: int, params: SamplingParams) -> None:
    rows = torch.stack([peaked(size, seed) for seed in range(3)])
    ids, found = leading(rows, params, 64)
    expected = warp(rows, params).topk(64)
    likely = expected.values > -torch.inf
    assert torch.equal(ids[likely], expected.indices[likely])
    assert torch.allclose(found, expected.values, atol=1e-4)


def test_leading_tokens_of_a_nucleus_that_is_longer_are_about_as_likely() -> None:
    rows, params = flat(16_384, 1)[None], SamplingParams(1.0, top_p=0.9)
    found, expected = leading(rows, params, 64)[1], warp(rows, params).topk(64).values
    assert torch.allclose(found, expected, atol=1e-3)


def test_the_log_probabilities_are_the_models_own() -> None:
    row = peaked(16_384, 2)
    told, scores = logprobs(row, 17, 20), row.log_softmax(-1)
    top = scores.topk(20)
    assert told.logprob == scores[17]
    assert told.top == tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    assert logprobs(row, 17, 0).top == ()
