"""What the kernel for CUDA devices draws is what the definition draws, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.benchmarks.sampling import flat, peaked
from tandem.engine.forward.cuda.kernels import drawing as kernel
from tandem.engine.sampling import drawing
from tandem.engine.sampling.device_draws import NAN, UNSURE
from tandem.engine.sampling.drawing import Rows, decided, draw_batch
from tandem.engine.sampling.noise import gumbel, keys
from tandem.engine.sampling.sampler import LogitsProcessor, draws
from tandem.protos.types import Draft, Rule, SamplingParams
from tandem.verifier_service import batched_sampling
from tandem.verifier_service.acceptance import walk
from tandem.verifier_service.batched_sampling import sample_batch
from tandem.verifier_service.target_sampler import TargetSampler
from tests.interpreted import interpreted
from tests.laws.rows import KINDS, adjusted, options, rounded

pytestmark = interpreted

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


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are on a processor here, but are drawn from as a device's are."""
    for module in (drawing, batched_sampling):
        monkeypatch.setattr(module, "has_kernel", lambda _: False)
    monkeypatch.setattr(drawing, "has_device_kernel", lambda _: True)
    monkeypatch.setattr(batched_sampling, "samples_before_walk", lambda _: True)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is one part, for parts are interpreted one after the other."""
    monkeypatch.setattr(kernel, "PART", 8192)
    monkeypatch.setattr(kernel, "CHUNK", 8192)


def assert_as_defined(rows: torch.Tensor, params: SamplingParams, places: Sequence[int]) -> int:
    """The tokens are those of the definition; of how many rows they are left to it."""
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
    rows = torch.stack([flat(40_001, 1), rounded(40_001, 2)])  # rows lie unaligned
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
    """Two tokens whose sums of score and noise are equal but for rounding."""
    noise = gumbel(0, 0, torch.arange(5000))
    row = -noise  # so that all sums are about equal
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
    """The kernel's noise of the first tokens."""
    ids = tl.arange(0, COUNT)
    low, high = low.to(tl.uint32, bitcast=True), high.to(tl.uint32, bitcast=True)
    tl.store(to + ids, -tl.log(kernel._exponential(ids, low, high)))


@pytest.mark.parametrize("seed", range(3))
def test_the_noise_is_that_of_the_definition_but_for_rounding(seed: int) -> None:
    count = 2**20
    found, (low, high) = torch.empty(count), keys([seed], [99])[0].tolist()
    _noise[(1,)](found, low, high, count)
    defined = gumbel(seed, 99, torch.arange(count))
    assert (found - defined).abs().max() < 4e-6
    assert defined.max() > 12 and defined.min() < -2.5  # the ends of the law are among them


def sampler(params: SamplingParams, seed: int) -> TargetSampler:
    """A draft of three nodes, the first of which tends to be accepted."""
    logits = torch.stack([flat(300, 9 * seed + node) for node in range(4)])
    logits[0, 3] += 9.0
    adjustment = LogitsProcessor(params, (1, 2, 5))
    return TargetSampler(Draft((3, 1, 4), (-1, 0, -1)), params, logits, adjustment)


MIXED = [
    SamplingParams(),
    SamplingParams(0.8, seed=3, logprobs=2),
    SamplingParams(0.7, seed=4, rule=Rule.TOP1, logprobs=2),
    SamplingParams(1.0, top_p=0.9, seed=5, rule=Rule.TOP1),
    SamplingParams(1.0, top_k=20, logit_bias=((3, -2.0),), logprobs=0),
]


def test_drafts_are_judged_by_the_kernels_draws_as_each_by_itself() -> None:
    together, alone = (
        [sampler(*each) for each in zip(MIXED, range(5), strict=True)] for _ in range(2)
    )
    sample_batch(together)
    for one, other in zip(together, alone, strict=True):
        decision = walk(one.draft.parents, one.decide)
        assert one.samples and not one.overflowed
        assert decision == walk(other.draft.parents, other.decide)
        for told, expected in zip(one.logprobs(*decision), other.logprobs(*decision), strict=True):
            assert told.logprob == pytest.approx(expected.logprob, abs=1e-6)
            assert [token for token, _ in told.top] == [token for token, _ in expected.top]


def test_a_draw_that_is_left_to_the_definition_has_its_log_probabilities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = sampler(MIXED[1], 1), sampler(MIXED[1], 1)
    sample_batch([other])
    monkeypatch.setattr(kernel, "draw", lambda table, _: torch.full((len(table),), UNSURE))
    sample_batch([one])
    assert [(each.drawn, each.logprobs.keys()) for each in one.samples] == [
        (each.drawn, each.logprobs.keys()) for each in other.samples
    ]


@pytest.mark.parametrize("place", [0, 2])
def test_a_draft_whose_logits_overflowed_is_known_though_options_hide_it(place: int) -> None:
    judges = [sampler(SamplingParams(0.9), 1), sampler(SamplingParams(suppress_tokens=(7,)), 2)]
    judges[1].logits[place, 7] = torch.nan
    sample_batch(judges)
    assert [each.overflowed for each in judges] == [False, True]


class Operations(TorchDispatchMode):
    """Counts PyTorch's operations, each of which is a launch on a device, but for views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by PyTorch instead of the operation."""
        if not func.is_view:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("params", "most"),
    [
        (SamplingParams(0.7), 3),
        (SamplingParams(0.7, top_k=20, top_p=0.8), 3),
        (SamplingParams(0.7, rule=Rule.TOP1), 3),
        (SamplingParams(0.7, logprobs=3), 18),
        (SamplingParams(0.7, repetition_penalty=1.1), 16),
        (SamplingParams(0.7, frequency_penalty=0.1, suppress_tokens=(4,)), 16),
    ],
    ids=repr,
)
def test_the_number_of_launches_does_not_depend_on_the_number_of_sessions(
    params: SamplingParams, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "draw", lambda table, _: table.new_zeros(len(table)).long())
    counts = []
    for many in (1, 16):
        each = [replace(params, temperature=0.5 + seed % 4, seed=seed) for seed in range(many)]
        judges = [sampler(*pair) for pair in zip(each, range(many), strict=True)]
        with Operations() as operations:
            sample_batch(judges)
        counts.append(operations.names)
    assert counts[0] == counts[1] and len(counts[1]) <= most, counts
