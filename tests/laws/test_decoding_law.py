"""The law of what the decoding job emits, enumerated: every draw, with any guesses, at any time."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest
import torch

from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.sampling.sampler import probabilities
from tandem.protos import tree
from tandem.protos.streams import Decoding, Guess
from tandem.protos.types import Context, Draft, Rule, SamplingParams
from tandem.verifier_service.acceptance import Decision, acceptance_chances
from tests.laws.replica import tiny_pool
from tests.laws.scripts import Script, outcomes
from tests.laws.verifying import Mailbox, decoding
from tests.laws.world import LENGTH, PROMPT, TARGET, VOCABULARY, Tokens, World, sampled_drafts

Law = dict[Tokens, float]
Guesser = Callable[[Tokens], Sequence[Guess]]
"""From the completion so far to what arrives before the next step."""

OPTIONS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.05),
    SamplingParams(temperature=1.0, repetition_penalty=1.5, prompt_length=2),
    SamplingParams(temperature=0.9, presence_penalty=0.8, frequency_penalty=-0.6, prompt_length=2),
    SamplingParams(temperature=1.0, min_new_tokens=2, end_tokens=(1, 2), prompt_length=2),
]


def run(script: Script, params: SamplingParams, guesser: Guesser, rows: int) -> Tokens:
    """The completion of one run of the job; each step feeds at most `rows` guessed nodes."""
    sessions = Sessions(tiny_pool(), 64, 2, count(1).__next__, 9.0, lambda: 0.0)
    stream, until = Mailbox(), len(PROMPT) + LENGTH
    lockstep = params.rule is not Rule.MATCH
    opening = Decoding(Context(b"s", 1, 0, PROMPT), params, until, lockstep=lockstep)
    step_input = decoding(sessions, opening, stream)
    job, text = step_input.run(), ()
    next(job)
    with torch.inference_mode():
        while len(text) < LENGTH:
            stream.inbox.extend(guesser(text))
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
    """The target's table behind every row that is wanted."""
    first = len(segment.parents) - segment.wanted
    known = len(segment.parents) - len(segment.tokens)
    assert known == 0
    rows = []
    for node in range(first, len(segment.parents)):
        path = tree.path(segment.parents, node)[first + 1 :]
        rows.append(TARGET[text + tuple(segment.tokens[each] for each in path)])
    return torch.stack(rows)


def law_of(params: SamplingParams, guesser: Guesser, rows: int) -> Law:
    """What is emitted, and how probable it is."""
    law: Law = defaultdict(float)
    for text, chance in outcomes(lambda script: run_with(script, params, guesser, rows)):
        law[text] += chance
    return law


def run_with(script: Script, params: SamplingParams, guesser: Guesser, rows: int) -> Tokens:
    """One run whose chance is the script's."""

    def draw(row: torch.Tensor, params: SamplingParams, position: int) -> int:
        return script.choose(probabilities(row, params).tolist())

    def reject(
        draft: Draft, node: int, children: Sequence[int], target: torch.Tensor, *_: object
    ) -> Decision:
        chances, residual = acceptance_chances(draft, node, children, target)
        for child, chance in zip(children, chances, strict=True):
            if script.choose([chance, 1 - chance]) == 0:
                return child, draft.tokens[child]
        return None, script.choose(residual.tolist())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tandem.verifier_service.target_sampler.sampling.draw", draw)
        patch.setattr("tandem.verifier_service.target_sampler.reject", reject)
        return run(script, params, guesser, rows)


def assert_is_the_targets(law: Law, world: World) -> None:
    """Each text is as probable as if the target wrote it alone."""
    for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
        alone = 1.0
        for size, token in enumerate(text):
            alone *= float(world.alone(text[:size])[token])
        assert abs(law.get(text, 0.0) - alone) <= 1e-12


def nothing(text: Tokens) -> Sequence[Guess]:
    return ()


def bush(text: Tokens) -> Sequence[Guess]:
    """Whole trees behind every length, numbered anew each time."""
    here = len(PROMPT) + len(text)
    return [
        Guess(here, (0, 1, 2, 1, 3), (0, 0, 1, 1, 2), (-0.1, -1, -0.2, -0.3, -0.4), source=here)
    ]


def at_once(text: Tokens) -> Sequence[Guess]:
    """All before the first step, in two guesses; nodes that come true are built upon."""
    if text:
        return ()
    here = len(PROMPT)
    return [
        Guess(here, (1, 2), (0, 0), (-0.5, -0.7)),
        Guess(here, (0, 3, 3), (1, 2, 3), (-0.1, -0.2, 0.0), first=3),
    ]


def late_and_absurd(text: Tokens) -> Sequence[Guess]:
    """Behind where the text is, ahead of it, with parents that nobody knows, twice."""
    here = len(PROMPT) + len(text)
    late = Guess(len(PROMPT), (0, 1, 2, 3), (0, 1, 1, 2), (0.0,) * 4)
    return [
        late,
        Guess(here + 2, (1,), (0,), (0.0,), first=9),
        Guess(here, (2,), (77,), (0.0,)),
        late,
    ]


@pytest.mark.parametrize("params", OPTIONS, ids=lambda params: f"T{params.temperature}")
@pytest.mark.parametrize("guesser", [nothing, bush, at_once, late_and_absurd])
@pytest.mark.parametrize("rows", [1, 9])
def test_match_emits_the_targets_law_with_any_guesses(
    params: SamplingParams, guesser: Guesser, rows: int
) -> None:
    assert_is_the_targets(law_of(params, guesser, rows), World(params))


@pytest.mark.parametrize("params", OPTIONS, ids=lambda params: f"T{params.temperature}")
@pytest.mark.parametrize("at", [0, 1])
def test_reject_emits_the_targets_law_in_lockstep(params: SamplingParams, at: int) -> None:
    """Over every draft that the drafter may draw, behind the completions of a length."""
    world, rejecting = World(params), replace(params, rule=Rule.REJECT)
    law: Law = defaultdict(float)

    def one(script: Script) -> Tokens:
        def guesser(text: Tokens) -> Sequence[Guess]:
            if len(text) != at:
                return [Guess(len(PROMPT) + len(text))]
            drafts = list(sampled_drafts(world, text, (-1, 0)))
            draft, _ = drafts[script.choose([chance for _, chance in drafts])]
            parents = tuple(parent + 1 for parent in draft.parents)
            here = len(PROMPT) + len(text)
            scores = (0.0,) * len(draft)
            return [Guess(here, draft.tokens, parents, scores, distributions=draft.distributions)]

        return run_with(script, rejecting, guesser, 0)

    for text, chance in outcomes(one):
        law[text] += chance
    assert_is_the_targets(law, world)


@pytest.mark.parametrize("params", OPTIONS, ids=lambda params: f"T{params.temperature}")
def test_top1_keeps_the_likeliest_token_where_it_was_guessed_and_else_draws(
    params: SamplingParams,
) -> None:
    """Its own law, and not the target's."""
    world, lossy = World(params), replace(params, rule=Rule.TOP1)

    def guesser(text: Tokens) -> Sequence[Guess]:
        return [Guess(len(PROMPT) + len(text), (1, 2), (0, 0), (0.0, 0.0))]

    law, expected = law_of(lossy, guesser, 0), Law()
    open_: list[tuple[Tokens, float]] = [((), 1.0)]
    while open_:
        text, chance = open_.pop()
        if len(text) >= LENGTH:
            expected[text[:LENGTH]] = expected.get(text[:LENGTH], 0.0) + chance
            continue
        weights = likeliest_if_guessed(world, text, (1, 2))
        for tokens, share in weights.items():
            open_.append((text + tokens, chance * share))
    assert expected.keys() >= law.keys()
    assert all(abs(law.get(text, 0.0) - share) <= 1e-12 for text, share in expected.items())


def likeliest_if_guessed(world: World, text: Tokens, guessed: Tokens) -> Law:
    """What one step emits: an accepted node, then the draw behind it; or a draw."""
    found: Law = {}
    first = int(world.behind(text, ()).argmax())
    path = (first,) if first in guessed and len(text) + 1 < LENGTH else ()
    if first in guessed and not path:
        return {(first,): 1.0}
    for token, share in enumerate(world.behind(text, path).tolist()):
        if share:
            found[(*path, token)] = share
    return found
