"""The distribution of the decoding job's tokens, computed by going through every possible draw, for
proposals of any kind that come at any time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest
import torch

from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.sampling.sampler import probabilities
from tandem.protos import tree
from tandem.protos.streams import Decoding, Proposal
from tandem.protos.types import Context, Draft, Rule, SamplingParams
from tandem.verifier_service.acceptance import Decision, reject
from tests.laws.replica import tiny_pool
from tests.laws.verifying import Mailbox, decoding
from tests.laws.world import LENGTH, PROMPT, TARGET, Script, Tokens, World, law_of, options

Proposer = Callable[[Tokens], Sequence[Proposal]]
"""From the completion so far to what arrives before the next step."""


def run(params: SamplingParams, proposer: Proposer, rows: int) -> Tokens:
    """Return the completion of one run of the job; each step feeds at most `rows` proposed
    nodes.
    """
    sessions = Sessions(tiny_pool(), 64, 2, count(1).__next__, 9.0, lambda: 0.0)
    stream, until = Mailbox(), len(PROMPT) + LENGTH
    lockstep = params.rule is not Rule.MATCH
    opening = Decoding(Context(b"s", 1, 0, PROMPT), params, until, lockstep=lockstep)
    step_input = decoding(sessions, opening, stream)
    job, text = step_input.run(), ()
    next(job)
    with torch.inference_mode():
        while len(text) < LENGTH:
            stream.inbox.extend(proposer(text))
            segment = step_input.ready()
            assert segment is not None
            if more := sum(1 for _ in itertools.islice(step_input.chances(), rows)):
                segment = step_input.segment(more)
            try:
                job.send(logits(segment, text))
            except StopIteration:
                assert len(stream.said[-1].tokens) + len(text) == LENGTH
            assert stream.said[-1].start == len(PROMPT) + len(text)
            text += stream.said[-1].tokens
    return text


def logits(segment: Segment, text: Tokens) -> torch.Tensor:
    """Return the target's logits for every wanted row."""
    first = len(segment.parents) - segment.num_logits
    assert len(segment.parents) == len(segment.tokens)
    rows = []
    for node in range(first, len(segment.parents)):
        path = tree.path(segment.parents, node)[first + 1 :]
        rows.append(TARGET[text + tuple(segment.tokens[each] for each in path)])
    return torch.stack(rows)


def run_with(script: Script, params: SamplingParams, proposer: Proposer, rows: int) -> Tokens:
    """Run the job once, with a script in the place of chance."""

    def draw(row: torch.Tensor, params: SamplingParams, position: int) -> int:
        return script.draw(probabilities(row, params))

    def rejecting(
        draft: Draft, node: int, children: Sequence[int], target: torch.Tensor, *_: object
    ) -> Decision:
        return reject(draft, node, children, target, script.throw, script.draw)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tandem.verifier_service.target_sampler.draw", draw)
        patch.setattr("tandem.verifier_service.target_sampler.reject", rejecting)
        return run(params, proposer, rows)


def nothing(text: Tokens) -> Sequence[Proposal]:
    return ()


def bush(text: Tokens) -> Sequence[Proposal]:
    """Propose whole trees for every length, with new node numbers each time."""
    here = len(PROMPT) + len(text)
    return [
        Proposal(here, (0, 1, 2, 1, 3), (0, 0, 1, 1, 2), (-0.1, -1, -0.2, -0.3, -0.4), source=here)
    ]


def at_once(text: Tokens) -> Sequence[Proposal]:
    """Propose everything before the first step, in two proposals, the second of which continues
    nodes of the first.
    """
    if text:
        return ()
    here = len(PROMPT)
    return [
        Proposal(here, (1, 2), (0, 0), (-0.5, -0.7)),
        Proposal(here, (0, 3, 3), (1, 2, 3), (-0.1, -0.2, 0.0), first=3),
    ]


def late_and_absurd(text: Tokens) -> Sequence[Proposal]:
    """Propose nodes twice, at the end of the text, before it and beyond it, some with unknown
    parents.
    """
    here = len(PROMPT) + len(text)
    late = Proposal(len(PROMPT), (0, 1, 2, 3), (0, 1, 1, 2), (0.0,) * 4)
    return [
        late,
        Proposal(here + 2, (1,), (0,), (0.0,), first=9),
        Proposal(here, (2,), (77,), (0.0,)),
        late,
    ]


@options
@pytest.mark.parametrize(
    ("proposer", "rows"), [(nothing, 1), (bush, 1), (bush, 9), (at_once, 9), (late_and_absurd, 9)]
)
def test_match_emits_the_targets_law_with_any_proposals(
    params: SamplingParams, proposer: Proposer, rows: int
) -> None:
    law = law_of(lambda script: run_with(script, params, proposer, rows))
    World(params).assert_is_the_targets(law)


@options
@pytest.mark.parametrize("at", [0, 1])
def test_reject_emits_the_targets_law_in_lockstep(params: SamplingParams, at: int) -> None:
    """The test enumerates every draft that the drafter may draw after the completions of a
    length.
    """
    world, rejecting = World(params), replace(params, rule=Rule.REJECT)

    def one(script: Script) -> Tokens:
        def proposer(text: Tokens) -> Sequence[Proposal]:
            here = len(PROMPT) + len(text)
            if len(text) != at:
                return [Proposal(here)]
            draft = world.draft(text, (-1, 0), script)
            parents = tuple(parent + 1 for parent in draft.parents)
            scores = (0.0,) * len(draft)
            return [
                Proposal(here, draft.tokens, parents, scores, distributions=draft.distributions)
            ]

        return run_with(script, rejecting, proposer, 0)

    world.assert_is_the_targets(law_of(one))


@options
def test_top1_keeps_the_likeliest_token_where_it_was_proposed_and_else_draws(
    params: SamplingParams,
) -> None:
    """The rule `top1` has its own distribution, not the target's."""
    world, lossy = World(params), replace(params, rule=Rule.TOP1)

    def proposer(text: Tokens) -> Sequence[Proposal]:
        return [Proposal(len(PROMPT) + len(text), (1, 2), (0, 0), (0.0, 0.0))]

    def likeliest_if_proposed(script: Script) -> Tokens:
        text: Tokens = ()
        while len(text) < LENGTH:
            likeliest = int(world.alone(text).argmax())
            text += (likeliest,) if likeliest in (1, 2) else ()
            if len(text) < LENGTH:
                text += (script.draw(world.alone(text)),)
        return text

    law = law_of(lambda script: run_with(script, lossy, proposer, 0))
    assert law == pytest.approx(law_of(likeliest_if_proposed), abs=1e-12)
