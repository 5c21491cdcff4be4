"""Drafts that are judged together get the same verdict as each would alone, and the host waits for
the device once.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from tandem.benchmarks.sampling import flat
from tandem.engine.cache.sessions import Sessions
from tandem.engine.sampling import drawing
from tandem.engine.sampling.sampler import LogitsProcessor
from tandem.protos.errors import Internal
from tandem.protos.streams import Decoding
from tandem.protos.types import Context, Draft, Rule, SamplingParams
from tandem.protos.wire.drafting import proposal_of
from tandem.verifier_service import batched_sampling
from tandem.verifier_service.acceptance import walk
from tandem.verifier_service.batched_sampling import sample_batch, samples_before_walk
from tandem.verifier_service.decoding import DecodeJob, sample_step
from tandem.verifier_service.target_sampler import TargetSampler
from tests.laws.replica import tiny_pool
from tests.laws.verifying import Mailbox, decoding

TEXT, VOCABULARY = (1, 2, 3, 10), 40
READS = {"cpu", "item", "numpy", "tolist", "nonzero", "__bool__", "__float__", "__int__"}

options = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.0, 1e-30]),
    top_k=st.sampled_from([0, 0, 1, 5]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.3]),
    seed=st.integers(0, 2**64 - 1),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    logit_bias=st.sampled_from([(), ((3, 2.0), (5, -9.0))]),
    prompt_length=st.just(2),
    min_new_tokens=st.sampled_from([0, 4]),
    end_tokens=st.just((3, 7)),
    rule=st.sampled_from(Rule),
    logprobs=st.sampled_from([None, 0, 5]),
)


@st.composite
def judges(draw: st.DrawFn) -> TargetSampler:
    """A draft of up to eight nodes, some of which will be accepted."""
    params, size = draw(options), draw(st.integers(0, 8))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    tokens = tuple(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)))
    logits = torch.stack([flat(VOCABULARY, draw(st.integers(0, 99))) for _ in range(1 + size)])
    logits[:, :10] += draw(st.sampled_from([0.0, 3.0, 9.0]))
    return TargetSampler(Draft(tokens, parents), params, logits, LogitsProcessor(params, TEXT))


def verdict(judge: TargetSampler) -> tuple[object, list[float]]:
    """Return the accepted nodes, the next token and the likeliest tokens with their
    probabilities.
    """
    accepted, token = walk(judge.draft.parents, judge.decide)
    told = judge.logprobs(accepted, token)
    assert not judge.overflowed
    chances = [(each.logprob, *(chance for _, chance in each.top)) for each in told]
    likeliest = [[token for token, _ in each.top] for each in told]
    return (accepted, token, likeliest), list(chain.from_iterable(chances))


@settings(max_examples=60)
@given(st.lists(judges(), min_size=1, max_size=6))
def test_a_draft_is_judged_together_with_others_as_by_itself(each: list[TargetSampler]) -> None:
    """The test covers all options, all rules, chains and trees."""
    alone = [verdict(replace(judge)) for judge in each]
    sample_batch(each)
    for judge, (decided, chances) in zip(each, alone, strict=True):
        assert bool(judge.samples) == samples_before_walk(judge)
        assert verdict(judge) == (decided, pytest.approx(chances, abs=1e-6))


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(0.8, top_p=0.9, seed=5)])
def test_a_path_is_followed_to_its_end(params: SamplingParams) -> None:
    logits = torch.stack([flat(20_000, seed) for seed in range(9)])
    logits[range(9), torch.arange(3, 12)] += 40.0
    draft = Draft((3, 1, 4, 5, 3, 4, 6, 2), (-1, -1, 0, 0, 2, 2, 2, 6))
    judge = TargetSampler(draft, params, logits, LogitsProcessor(params, TEXT))
    assert walk(draft.parents, judge.decide) == ((0, 2, 6), 10)
    sample_batch([judge])
    assert walk(draft.parents, judge.decide) == ((0, 2, 6), 10)


class Reads(TorchFunctionMode):
    """Counts the operations that wait for a device, wherever the tensors are."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """PyTorch calls this method instead of the function."""
        self.count += getattr(func, "__name__", "") in READS
        return func(*args, **(kwargs or {}))


@contextmanager
def running(params: Sequence[SamplingParams]) -> Generator[list[tuple[DecodeJob, Any]]]:
    """Return as many jobs as there are options, each waiting for the logits of a draft with three
    nodes.
    """
    sessions = Sessions(tiny_pool(8), 64, 8, count(1).__next__, 9.0, lambda: 0.0)
    jobs = []
    for number, each in enumerate(params):
        context = Context(bytes([number]), 1, 0, TEXT)
        step_input = decoding(sessions, Decoding(context, each, 40, lockstep=True), Mailbox())
        job = step_input.run()
        next(job)
        step_input.stream.inbox.append(proposal_of(Draft((1, 2, 3), (-1, 0, -1)), len(TEXT)))
        assert step_input.ready()
        jobs.append((step_input, job))
    yield jobs
    for _, job in jobs:
        job.close()


MANY = [
    SamplingParams(),
    SamplingParams(0.8, top_k=9, seed=1, logprobs=3),
    SamplingParams(0.8, top_k=9, seed=2, rule=Rule.TOP1),
    SamplingParams(1.0, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.1),
    SamplingParams(1.0, logit_bias=((3, 1.0),), min_new_tokens=9, end_tokens=(4,)),
]


@torch.inference_mode()
def test_a_device_is_waited_for_once_however_many_sessions_are_in_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows are on the CPU here, but are sampled in the way that rows on a GPU are."""
    monkeypatch.setattr(drawing, "kernels", lambda: None)
    monkeypatch.setattr(batched_sampling, "samples_before_walk", lambda _: True)
    rows = [torch.stack([flat(VOCABULARY, 9 * n + k) for k in range(4)]) for n in range(len(MANY))]
    said = []
    for together in (True, False):
        with running(MANY) as jobs, Reads() as reads:
            if together:
                step_inputs = [step_input for step_input, _ in jobs]
                sample_step([*zip(step_inputs, rows, strict=True), (object(), rows[0])])
            for (_, job), logits in zip(jobs, rows, strict=True):
                job.send(logits)
            said.append([step_input.stream.said for step_input, _ in jobs])  # type: ignore[attr-defined]
            assert (reads.count == 1) if together else (reads.count >= 2 * len(MANY))
    (one, other) = said
    tokens = [[[commit.tokens for commit in commits] for commits in each] for each in (one, other)]
    assert tokens[0] == tokens[1]


@torch.inference_mode()
def test_a_session_whose_logits_overflowed_fails_alone() -> None:
    rows = [torch.stack([flat(VOCABULARY, k) for k in range(4)]) for _ in range(3)]
    rows[1][2, 5] = math.nan
    with running(MANY[:3]) as jobs:
        sample_step([(step_input, each) for (step_input, _), each in zip(jobs, rows, strict=True)])
        for place, ((step_input, job), logits) in enumerate(zip(jobs, rows, strict=True)):
            if place == 1:
                with pytest.raises(Internal, match="overflowed"):
                    job.send(logits)
            else:
                job.send(logits)
            assert len(step_input.stream.said) == (place != 1)  # type: ignore[attr-defined]
