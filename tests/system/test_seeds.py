"""The notebooks that Tandem began with: their loops run call by call on real services, beside the
same loops on transformers alone.

The tests compare with `==`: text, candidates, branches and accepted tokens, round by round.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers.generation import candidate_generator
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from examples.assisted_generation import Round, assisted_decoding
from examples.candidate_generator import TandemCandidateGenerator
from examples.medusa_lite import medusa_generate, normalize_text
from examples.minimal_loop import speculative_generate_minimal
from examples.talk import Talk, talking
from tandem.benchmarks.peers.prompts import story_prompts
from tandem.protos.types import DraftShape, SamplingParams, Schedule
from tests import notebooks
from tests.notebooks import Notebook
from tests.served import Pair, Services
from tests.waiting import LIMIT

PROMPTS = [
    "Alice and Bob",
    "In a distant future, \u00a0  the crew   finds   a signal!  ",
    *story_prompts()[:2],
]
TOKENS = 16
END = (0,)
VOCABULARY = 4096


@pytest.fixture(scope="module")
def notebook(embedded: Pair) -> Notebook:
    """Return the embedded pair as transformers runs it."""
    return Notebook.of(embedded.target, embedded.draft)


@pytest.fixture(autouse=True)
async def _nothing_left(nothing_left: None) -> None:
    """Check that every loop closes its session."""


@dataclass
class Seen:
    """Records what transformers' loop told its candidate generator in every round:
    (candidate_length, n_matches, num_assistant_tokens afterwards).
    """

    rounds: list[tuple[int, int, int]] = field(default_factory=list)

    def watch(self, patch: pytest.MonkeyPatch, kind: type) -> None:
        update = kind.update_candidate_strategy

        def seeing(generator: Any, ids: Any, scores: torch.Tensor, matches: int) -> None:
            update(generator, ids, scores, matches)
            told = len(scores[0]) - 1, int(matches), int(generator.num_assistant_tokens)
            self.rounds.append(told)

        patch.setattr(kind, "update_candidate_strategy", seeing)

    def take(self) -> list[tuple[int, int, int]]:
        taken, self.rounds = self.rounds, []
        return taken


def talk(services: Services, ids: list[int]) -> AbstractAsyncContextManager[Talk]:
    return talking(services.drafter_client, services.verifier_client, ids)


async def candidates(session: Talk, schedule: Schedule, **options: Any) -> TandemCandidateGenerator:
    assistant = await session.drafter.describe(LIMIT)
    limit = len(session.tokens) + TOKENS
    return TandemCandidateGenerator(session, assistant, limit, schedule, **options)


async def assisted(
    services: Services, ids: list[int], schedule: Schedule, **options: Any
) -> tuple[list[int], list[Round]]:
    """Return all tokens and the rounds, on Tandem."""
    async with talk(services, ids) as session:
        generator = await candidates(session, schedule, **options)
        outputs, rounds = await assisted_decoding(session, generator, len(ids) + TOKENS, END)
    return outputs[0].tolist(), rounds


def figures(rounds: list[Round]) -> list[tuple[int, int, int]]:
    return [(each.candidate_length, each.n_matches, each.num_assistant_tokens) for each in rounds]


def check_shapes(rounds: list[Round], length: int) -> None:
    for each in rounds:
        k = each.candidate_length
        assert each.candidate_input_ids == (1, length + k)
        assert each.candidate_logits == ((1, k, VOCABULARY) if k else None)
        length += each.n_matches + 1


@pytest.mark.parametrize("threshold", [0.0, 0.4])
@pytest.mark.parametrize("schedule", [Schedule.CONSTANT, Schedule.HEURISTIC], ids=str)
async def test_assisted_generation_goes_round_by_round_as_in_transformers(
    services: Services,
    notebook: Notebook,
    monkeypatch: pytest.MonkeyPatch,
    schedule: Schedule,
    threshold: float,
) -> None:
    seen, name, matches = Seen(), schedule.name.lower(), 0
    seen.watch(monkeypatch, AssistedCandidateGenerator)
    # transformers would change the threshold during the run if scikit-learn is installed
    monkeypatch.setattr(candidate_generator, "is_sklearn_available", lambda: False)
    for prompt in PROMPTS:
        ids = notebook.encode(prompt)
        expected = await asyncio.to_thread(notebook.assisted, ids, TOKENS, name, threshold)
        tokens, rounds = await assisted(services, ids, schedule, confidence_threshold=threshold)
        assert tokens == expected
        assert figures(rounds) == seen.take()
        check_shapes(rounds, len(ids))
        matches += sum(each.n_matches for each in rounds)
    assert matches > TOKENS, "candidates were really accepted"


async def test_transformers_own_loop_takes_its_candidates_from_a_drafter(
    services: Services, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, model = Seen(), notebook.target.network
    seen.watch(monkeypatch, TandemCandidateGenerator)
    for prompt in PROMPTS[:2]:
        ids = notebook.encode(prompt)
        async with talk(services, ids) as session:
            generator = await candidates(session, Schedule.HEURISTIC)
            monkeypatch.setattr(model, "_get_candidate_generator", lambda g=generator, **_: g)
            # any option that makes transformers ask for a candidate generator
            lookup = {"prompt_lookup_num_tokens": 1}
            text = await asyncio.to_thread(notebook.generate, ids, TOKENS, **lookup)
        tokens, rounds = await assisted(services, ids, Schedule.HEURISTIC)
        assert text == tokens
        assert seen.take() == figures(rounds)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_candidate_logits_are_what_the_candidates_were_drawn_from(
    services: Services, notebook: Notebook, temperature: float
) -> None:
    ids = notebook.encode(PROMPTS[0])
    options = {"confidence_threshold": 0.0, "temperature": temperature, "seed": 3}
    async with talk(services, ids) as session:
        generator = await candidates(session, Schedule.CONSTANT, **options)
        tokens, logits = await generator.propose(torch.tensor([ids]))
    assert logits is not None and logits.shape == (1, TOKENS - 1, VOCABULARY)
    path = tokens[0].tolist()
    for place, row in enumerate(logits[0], start=len(ids)):
        certain = torch.nn.functional.one_hot(torch.tensor(path[place]), VOCABULARY).float()
        p = notebook.draft.last_logits(path[:place]).softmax(-1) if temperature else certain
        p = p * row.isfinite()  # the service sends only the likeliest tokens
        assert row[path[place]].isfinite() and torch.allclose(
            row.softmax(-1), p / p.sum(), atol=1e-4
        )


@pytest.mark.parametrize(("k", "span", "temperature"), [(3, 3, 0.8), (4, 1, 0.9), (2, 6, 1.5)])
async def test_medusa_lite_drafts_and_keeps_the_branches_of_its_notebook(
    services: Services, notebook: Notebook, k: int, span: int, temperature: float
) -> None:
    scores = set()
    for seed, prompt in enumerate(PROMPTS):
        options = (TOKENS, k, span, temperature, seed)
        text, expected = await asyncio.to_thread(
            notebooks.medusa_generate, notebook, prompt, *options
        )
        async with talk(services, notebook.encode(prompt)) as session:
            steps = await medusa_generate(session, *options)
            assert normalize_text(notebook.decode(session.tokens)) == text
        assert len(steps) == len(expected)
        for step, (branches, best) in zip(steps, expected, strict=True):
            assert [(b.tokens, b.accepted, b.mismatched, b.score) for b in step.branches] == [
                (b.tokens, b.accepted, b.mismatched, b.score) for b in branches
            ]
            assert branches[step.best] is best
            scores.add(best.score)
    assert scores >= {-1, span}, "branches were accepted as a whole, and not at all"
    assert span == 1 or any(0 <= score < span for score in scores), "and in part"


@pytest.mark.parametrize(("k", "temperature"), [(3, 0.0), (4, 0.7), (1, 1.0)])
async def test_the_minimal_loop_accepts_and_says_what_its_notebook_does(
    services: Services, notebook: Notebook, k: int, temperature: float
) -> None:
    counts = set()
    for seed, prompt in enumerate(PROMPTS):
        options = (TOKENS, k, temperature, seed)
        text, expected = await asyncio.to_thread(
            notebooks.speculative_generate_minimal, notebook, prompt, *options
        )
        async with talk(services, notebook.encode(prompt)) as session:
            cycles = await speculative_generate_minimal(session, *options)
            assert notebook.decode(session.tokens) == text
        assert [(cycle.proposed, cycle.accepted) for cycle in cycles] == expected
        counts |= {cycle.accepted for cycle in cycles}
    assert counts == set(range(k + 1)), "none, some and all of a draft were accepted"


async def test_a_talk_goes_on_behind_whatever_its_caller_commits(services: Services) -> None:
    """After any commit, and after the services lost the session, the answers are those of a new
    session.
    """
    sampling, shape = SamplingParams(temperature=1.0, seed=8), DraftShape(3, 2, 6)
    async with talk(services, [400, 500, 600]) as session:
        for turn, commit in enumerate([[7], [], [9, 10, 11], [12] * 5, [13]]):
            draft = await session.propose(shape, sampling)
            verdict = await session.verify(draft, sampling)
            async with talk(services, session.tokens) as other:
                assert await other.propose(shape, sampling) == draft
                fresh = await other.verify(draft, sampling)
            assert (fresh.accepted, fresh.next_token) == (verdict.accepted, verdict.next_token)
            if turn == 2:
                await session.close()
            session.tokens += [*(draft.tokens[node] for node in verdict.accepted), *commit]
