"""Penalties at the tokens that occur are those of transformers and of their definitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from tandem.engine.sampling.sampler import LogitsProcessor
from tandem.engine.sampling.token_counts import TokenCounts
from tandem.protos.types import SamplingParams

VOCABULARY = 30
tokens = st.lists(st.integers(0, VOCABULARY + 5), max_size=40)
penalties = st.sampled_from([-1.5, 0.0, 0.3, 2.0])


@given(tokens, tokens, tokens)
def test_tokens_are_counted_and_a_path_is_not_kept(
    text: list[int], more: list[int], path: list[int]
) -> None:
    tally = TokenCounts(text)
    tally.add(more)
    for behind in (path, []):
        ids, counts = tally.of(behind, VOCABULARY)
        expected = Counter(token for token in text + more + behind if token < VOCABULARY)
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == expected


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
    row = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(1))
    expected = row.clone()
    if repetition != 1:
        text = [token for token in prompt + completion + path if token < VOCABULARY]
        penalise = RepetitionPenaltyLogitsProcessor(repetition)
        expected = penalise(torch.tensor(text, dtype=torch.long)[None], expected[None])[0]
    for token, times in Counter(completion + path).items():
        if token < VOCABULARY:
            expected[token] -= times * torch.tensor(frequency) + presence
    before = row.clone()
    assert torch.allclose(adjustment.apply(row, path), expected, atol=1e-6)
    assert torch.equal(row, before)
