"""Drafts are judged by the draws of the kernel for CUDA devices, for all sessions at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.benchmarks.sampling import flat
from tandem.engine.forward.cuda.kernels import drawing as kernel
from tandem.engine.sampling.device_draws import UNSURE
from tandem.engine.sampling.sampler import LogitsProcessor
from tandem.protos.types import Draft, Rule, SamplingParams
from tandem.verifier_service.acceptance import walk
from tandem.verifier_service.batched_sampling import sample_batch
from tandem.verifier_service.target_sampler import TargetSampler
from tests.interpreted import interpreted

pytestmark = [interpreted, pytest.mark.usefixtures("drawn_as_on_a_device")]


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
    """Counts PyTorch's operations except views; each one is a kernel launch on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """PyTorch calls this method instead of the operation."""
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
