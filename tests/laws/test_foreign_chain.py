"""A chain in the draft model's own tokens: when it goes on, and what it promises."""

from __future__ import annotations

import math

import pytest
import torch

from drafter_service.foreign import Chain
from protos.types import DraftShape

LOGITS = torch.tensor([0.0, math.log(8.0), 0.0])  # the likeliest token has .8


@pytest.mark.parametrize("trust", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("confidence", "goes_on"), [(0.0, True), (0.79, True), (0.81, False)])
def test_how_sure_the_draft_model_is_does_not_depend_on_how_far_it_is_trusted(
    trust: float, confidence: float, goes_on: bool
) -> None:
    chain = Chain(DraftShape(4, 1, 4, confidence=confidence, trust=trust), temperature=1.0)
    assert chain.add(LOGITS) == goes_on
    assert chain.tokens == [1]


def test_what_is_drawn_at_a_temperature_is_less_sure() -> None:
    promises = []
    for temperature in (0.0, 1.0, 2.0):
        chain = Chain(DraftShape.chain(4), temperature)
        chain.add(LOGITS)
        promises.append(chain.expected)
    assert promises == sorted(promises, reverse=True)
    assert len(set(promises)) == 3
