"""Rejection sampling with real keyed noise is right if its random streams are independent, and
clearly wrong if two of them are the same.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

import tandem.verifier_service.target_sampler as target_sampler
from tandem.drafter_service.tree.expansion import sampled_children
from tandem.engine.sampling.noise import NoiseStream
from tandem.engine.sampling.sampler import LogitsProcessor, probabilities
from tandem.protos.types import Draft, Rule, SamplingParams
from tandem.verifier_service.acceptance import walk
from tandem.verifier_service.target_sampler import TargetSampler

TARGET = torch.tensor([1.2, 0.6, -2.5, -0.4, -1.0])
DRAFTED = torch.tensor([-0.6, 1.6, 2.2, 0.1, -0.2])
SEEDS = 3000
LIKELY = 18.5  # chi-square of 4 degrees of freedom that is exceeded once in 1,000


def first_token(seed: int, branches: int) -> int:
    """Return the token that one round emits first."""
    params = SamplingParams(temperature=1.0, seed=seed, rule=Rule.REJECT)
    (proposal,) = sampled_children(params, branches, root=2)(DRAFTED[None], [2])
    assert proposal.drawn is not None
    tokens = tuple(child.token for child in proposal.children)
    nothing = type(proposal.drawn)()
    draft = Draft(tokens, (-1,) * len(tokens), (proposal.drawn, *(nothing,) * len(tokens)))
    logits = TARGET.repeat(1 + len(tokens), 1)
    judge = TargetSampler(draft, params, logits, LogitsProcessor(params, (7, 7)))
    accepted, token = walk(draft.parents, judge.decide)
    return draft.tokens[accepted[0]] if accepted else token


def chi_square(branches: int) -> float:
    """Return the distance of the first tokens of many seeds from the target's distribution."""
    seen = Counter(first_token(seed, branches) for seed in range(SEEDS))
    expected = probabilities(TARGET, SamplingParams(temperature=1.0)) * SEEDS
    return sum((seen[t] - expected[t].item()) ** 2 / expected[t].item() for t in range(5))


@pytest.mark.parametrize("branches", [1, 2])
def test_separate_streams_emit_the_distribution_of_the_target(branches: int) -> None:
    assert chi_square(branches) < LIKELY


@pytest.mark.parametrize(("aliased", "branches"), [("ACCEPT", 2), ("RESIDUAL", 1)])
def test_a_stream_that_is_also_the_drafts_is_seen(
    aliased: str, branches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {each.name: each for each in NoiseStream} | {aliased: NoiseStream.DRAFT}
    monkeypatch.setattr(target_sampler, "NoiseStream", SimpleNamespace(**streams))
    assert chi_square(branches) > LIKELY
