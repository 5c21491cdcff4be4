"""Warping and keyed noise: the distribution is right, and each service computes the same bits."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from tandem.drafter_service.tree.expansion import likeliest_children
from tandem.engine.sampling.adjustment import adjust
from tandem.engine.sampling.drawing import draw
from tandem.engine.sampling.likeliest import logprobs
from tandem.engine.sampling.noise import gumbel
from tandem.engine.sampling.sampler import LogitsProcessor, warp
from tandem.protos.types import SamplingParams


def by_hand(logits: list[float], params: SamplingParams) -> list[float]:
    """Apply temperature, top-k and top-p by their definitions, in plain Python."""
    scaled = [x / params.temperature for x in logits]
    if params.top_k:
        least = sorted(scaled, reverse=True)[min(params.top_k, len(scaled)) - 1]
        scaled = [x if x >= least else -math.inf for x in scaled]
    weights = [math.exp(x - max(scaled)) for x in scaled]
    probabilities = [w / sum(weights) for w in weights]
    if params.top_p < 1:
        total, kept = 0.0, set()
        for token in sorted(range(len(logits)), key=lambda t: -probabilities[t]):
            kept.add(token)
            total += probabilities[token]
            if total >= params.top_p:
                break
        probabilities = [p if t in kept else 0.0 for t, p in enumerate(probabilities)]
    least = params.min_p * max(probabilities)
    probabilities = [p if p >= least else 0.0 for p in probabilities]
    return [p / sum(probabilities) for p in probabilities]


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 4])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.4])
@pytest.mark.parametrize("min_p", [0.0, 0.1])
def test_warping_is_what_its_definition_says(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.randn(1, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    params = SamplingParams(temperature, top_k, top_p, min_p=min_p)
    expected = torch.tensor(by_hand(logits[0].tolist(), params), dtype=torch.float64)
    assert (warp(logits, params).exp()[0] - expected).abs().max() <= 1e-12


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20), st.permutations(range(50)))
def test_noise_depends_on_seed_position_and_token_alone(
    seed: int, position: int, order: list[int]
) -> None:
    whole = gumbel(seed, position, torch.arange(50))
    assert torch.equal(gumbel(seed, position, torch.tensor(order)), whole[order])
    assert torch.isfinite(whole).all()


@settings(max_examples=50, derandomize=True)  # random cases may fail by chance
@given(st.integers(0, 2**64 - 2), st.integers(0, 2**20))
def test_neighbouring_seeds_and_positions_share_no_noise(seed: int, position: int) -> None:
    ids = torch.arange(200)
    here = gumbel(seed, position, ids)
    for other in (gumbel(seed + 1, position, ids), gumbel(seed, position + 1, ids)):
        correlation = torch.corrcoef(torch.stack([here, other]))[0, 1].abs().item()
        assert correlation < 0.45
        assert not torch.equal(here, other)


def test_the_noise_is_a_gumbel_variate() -> None:
    """The bound is on the Kolmogorov-Smirnov distance of 200,000 values; chance exceeds 0.005 once
    in 10^4.
    """
    values = (
        torch.cat([gumbel(1, position, torch.arange(2000)) for position in range(100)])
        .double()
        .sort()
        .values
    )
    cdf = torch.exp(-torch.exp(-values))
    steps = torch.arange(1, len(values) + 1, dtype=torch.float64) / len(values)
    assert (cdf - steps).abs().max().item() < 0.005


def test_the_noise_has_known_bits() -> None:
    """If the bits of the noise change, every seeded text changes."""
    expected = torch.tensor([-0.3548164665699005, 2.2342073917388916, 0.01479673758149147])
    assert torch.allclose(gumbel(42, 7, torch.tensor([0, 1, 4095])), expected, rtol=0, atol=1e-6)


def test_draws_follow_the_warped_distribution() -> None:
    """One chi-square test as a smoke test."""
    logits, params = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0]), SamplingParams(temperature=0.8)
    count = 5_000
    seen = Counter(draw(logits, SamplingParams(0.8, seed=seed), 5) for seed in range(count))
    expected = warp(logits[None], params)[0].exp() * count
    chi_square = sum((seen[t] - expected[t].item()) ** 2 / expected[t].item() for t in range(5))
    assert chi_square < 18.5  # 4 degrees of freedom, p = .001


def test_greedy_takes_the_first_of_equals() -> None:
    assert draw(torch.tensor([0.0, 2.0, 2.0]), SamplingParams(), 0) == 1


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-20, 1e20, 3e38])
def test_no_temperature_makes_infinities(temperature: float) -> None:
    logits = torch.tensor([-80.0, 99.0, 0.0, 98.0])
    """A device multiplies by the reciprocal, and 0 x infinity is no number."""
    assert warp(logits[None], SamplingParams(temperature)).isfinite().all()
    if temperature < 1:
        assert draw(logits, SamplingParams(temperature, seed=1), 4) == 1


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 50, "min_p": 0.01}])
@settings(derandomize=True)  # one pair of numbers in a million is too close to tell apart
@given(st.integers(0, 2**32), st.integers(0, 1000))
def test_a_drafter_with_the_targets_logits_ranks_the_targets_draw_first(
    options: dict[str, Any], seed: int, position: int
) -> None:
    """The test includes very flat distributions."""
    logits = torch.randn(1, 4096, generator=torch.Generator().manual_seed(seed))
    params = SamplingParams(temperature=0.9, seed=seed, **options)
    (proposal,) = likeliest_children(params, 4)(logits, [position])
    assert proposal.children[0].token == draw(logits[0], params, position)


LOGITS = torch.tensor([2.0, -1.0, 0.5, 3.0, -2.0, 0.0])
PROMPT, COMPLETION = (0, 1, 1), (3, 3, 4)


def adjusted(params: SamplingParams, path: tuple[int, ...] = ()) -> list[float]:
    """Return the logits after prompt, completion and a path."""
    adjustment = LogitsProcessor(replace(params, prompt_length=3), PROMPT + COMPLETION)
    return adjustment.apply(LOGITS, path).tolist()


tokens = st.lists(st.integers(0, len(LOGITS) + 5), max_size=40)
penalties = st.sampled_from([-1.5, 0.0, 0.3, 2.0])


@given(tokens.filter(bool), tokens, tokens, st.sampled_from([1.0, 0.5, 1.3]), penalties, penalties)
def test_rows_are_penalised_as_defined(
    prompt: list[int],
    completion: list[int],
    path: list[int],
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    adjustment = LogitsProcessor(replace(params, prompt_length=len(prompt)), prompt)
    adjustment.extend(completion)
    expected = LOGITS.clone()
    if repetition != 1:
        text = [token for token in prompt + completion + path if token < len(LOGITS)]
        penalise = RepetitionPenaltyLogitsProcessor(repetition)
        expected = penalise(torch.tensor(text, dtype=torch.long)[None], expected[None])[0]
    for token, times in Counter(completion + path).items():
        if token < len(LOGITS):
            expected[token] -= times * torch.tensor(frequency) + presence
    rows, before = LOGITS.repeat(2, 1), LOGITS.clone()
    found = adjustment.rows(rows, [prompt, path])  # each row has its own path
    assert torch.allclose(found[1], expected, atol=1e-6)
    assert torch.equal(LOGITS, before)


def test_rows_of_many_texts_are_adjusted_at_once_as_each_alone() -> None:
    every = [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(),
        SamplingParams(presence_penalty=0.5, frequency_penalty=-0.2, suppress_tokens=(2,)),
        SamplingParams(logit_bias=((1, 4.0), (5, -1.0)), repetition_penalty=0.5),
    ]
    texts = [LogitsProcessor(params, [place, 3]) for place, params in enumerate(every)]
    rows = torch.randn(4, len(LOGITS), generator=torch.Generator().manual_seed(1))
    changes = [text.adjustment((1, 1), len(LOGITS)) for text in texts]
    together = adjust([rows[:1], rows[1:]], changes)
    for text, row, found in zip(texts, rows, together, strict=True):
        assert torch.equal(text.apply(row, (1, 1)), found)
    assert torch.equal(together[1], rows[1]) and not torch.equal(together[0], rows[0])


def test_a_bias_is_added_and_one_for_an_unknown_token_is_nothing() -> None:
    params = SamplingParams(logit_bias=((1, 4.0), (3, -1.5), (999, 7.0)))
    assert adjusted(params) == [2.0, 3.0, 0.5, 1.5, -2.0, 0.0]


def test_ends_are_barred_until_there_are_enough_tokens_whatever_their_bias() -> None:
    params = SamplingParams(min_new_tokens=5, end_tokens=(3, 999), logit_bias=((3, 100.0),))
    assert adjusted(params)[3] == adjusted(params, (1,))[3] == -math.inf
    assert adjusted(params, (1, 1))[3] == 103.0


def test_suppressed_tokens_are_never_drawn_and_some_not_as_the_first() -> None:
    """Suppressed tokens are never drawn, whatever their bias; tokens that the model lacks are
    ignored.
    """
    params = SamplingParams(
        suppress_tokens=(1, 999),
        begin_suppress_tokens=(3, 999),
        logit_bias=((1, 9.0), (3, 9.0)),
        prompt_length=len(PROMPT),
    )
    first = LogitsProcessor(params, PROMPT)
    for row, barred in ((first.apply(LOGITS), {1, 3}), (first.apply(LOGITS, (2,)), {1})):
        assert {place for place, logit in enumerate(row) if logit == -math.inf} == barred
    for name in ("suppress_tokens", "begin_suppress_tokens"):  # each alone, too
        params = replace(SamplingParams(), **{name: (1,)})
        assert LogitsProcessor(params, []).rows(LOGITS[None], [()])[0, 1] == -math.inf


def test_log_probabilities_are_the_models_own() -> None:
    told = logprobs(LOGITS, 5, 2)
    scores = LOGITS.log_softmax(-1).tolist()
    assert told.logprob == scores[5]
    assert told.top == ((3, scores[3]), (0, scores[0]))
