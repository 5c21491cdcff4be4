"""A chain in the draft model's own tokens: when it continues, and how likely it is in the target's
tokens.
"""

from __future__ import annotations

import math

import pytest
import torch

from tandem.drafter_service.foreign.chains import MIN_CHANCE, Chain
from tandem.protos.types import DraftShape

LOGITS = torch.tensor([0.0, math.log(8.0), 0.0])  # the likeliest token has a probability of 0.8


@pytest.mark.parametrize(("confidence", "goes_on"), [(0.0, True), (0.79, True), (0.81, False)])
def test_nothing_is_drafted_behind_a_token_that_the_draft_model_does_not_trust(
    confidence: float, goes_on: bool
) -> None:
    chain = Chain(DraftShape(4, 1, 4, confidence=confidence), temperature=1.0)
    assert chain.add(LOGITS) == goes_on
    assert chain.tokens == [1]


def test_what_is_drawn_at_a_temperature_is_less_sure() -> None:
    chances = []
    for temperature in (0.0, 1.0, 2.0):
        chain = Chain(DraftShape.chain(4), temperature)
        chain.add(LOGITS)
        chances += chain.chances
    assert chances == sorted(chances, reverse=True)
    assert len(set(chances)) == 3


def test_a_chain_ends_where_it_is_not_accepted_any_more() -> None:
    chain = Chain(DraftShape.chain(9), temperature=1.0)
    while chain.add(LOGITS):
        assert chain.chances[-1] >= MIN_CHANCE
    assert chain.chances[-2] >= MIN_CHANCE > chain.chances[-1]
    assert chain.tokens == [1] * len(chain.chances)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_in_other_words_a_chain_is_as_likely_as_in_its_own(count: int) -> None:
    chain = Chain(DraftShape.chain(4), temperature=0.0, chances=[0.9, 0.5, 0.4], tokens=[1, 1, 1])
    logprobs = chain.logprobs(count)
    assert len(logprobs) == count and max(logprobs) <= 0
    assert math.exp(sum(logprobs)) == pytest.approx(0.4)
    assert math.exp(logprobs[0]) == pytest.approx({1: 0.4, 2: 0.5}.get(count, 0.9))
