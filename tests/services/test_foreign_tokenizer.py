"""A drafter with a tokenizer of its own: it speeds the target up and changes nothing."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from benchmarks.prompts import tokenised
from drafter_service.foreign import Mirrors, propose
from drafter_service.translation import Translation
from engine.forward import Forward
from engine.model import load
from engine.plan import Segment
from engine.sessions import Sessions
from models import EMBEDDED, TARGET
from orchestrator.generation import Generation
from protos.errors import SessionMiss, StaleTurn
from protos.types import Context, DraftShape, Proposal, Rule, SamplingParams, Verdict
from tests import reference
from verifier_service.verifier import verify

FOREIGN = EMBEDDED.parent / "foreign"
ID, CONTEXT, END, MOST = b"session of a text", 512, 0, 3
GREEDY, SHAPE = SamplingParams(), DraftShape.chain(4)
Job = Generator[Segment, torch.Tensor, Any]


class Engine:
    """A model and its sessions, one job at a time."""

    def __init__(self, folder: Path, exact: bool) -> None:
        torch.set_num_threads(1)
        self.forward = Forward(load(folder), 4096, exact)
        self.fed: list[int] = []  # tokens of each step
        self.now = 0.0
        self.sessions = Sessions(
            self.forward.pool, CONTEXT, MOST, count(1).__next__, 60.0, lambda: self.now
        )

    @torch.inference_mode()
    def run(self, job: Job) -> Any:
        """Give a job its logits, step by step, until it answers."""
        try:
            segment = next(job)
            while True:
                self.fed.append(len(segment.tokens))
                segment = job.send(self.forward([segment])[0])
        except StopIteration as end:
            return end.value


@dataclass
class Drafter:
    """The foreign draft model behind a translation."""

    engine: Engine
    translation: Translation
    mirrors: Mirrors = field(default_factory=lambda: Mirrors(MOST))

    def job(
        self, context: Context, shape: DraftShape = SHAPE, params: SamplingParams = GREEDY
    ) -> Generator[Segment, torch.Tensor, Proposal]:
        """A drafting job that has not begun."""
        tokens = self.engine.forward.model.token_count
        sessions = self.engine.sessions
        return propose(sessions, context, shape, params, tokens, self.translation, self.mirrors)

    def propose(self, context: Context, *asked: Any) -> Proposal:
        """A whole one."""
        proposal = self.engine.run(self.job(context, *asked))
        assert isinstance(proposal, Proposal)
        return proposal


@pytest.fixture(scope="module")
def verifier() -> Engine:
    """The embedded target."""
    return Engine(TARGET, exact=True)


@pytest.fixture(scope="module")
def model() -> Engine:
    """The foreign draft model, loaded once."""
    return Engine(FOREIGN, exact=False)


@pytest.fixture
def drafter(model: Engine) -> Drafter:
    """With no session open."""
    own, theirs = (Tokenizer.from_file(str(at / "tokenizer.json")) for at in (FOREIGN, TARGET))
    model.sessions.expire()
    for name in (ID, *(bytes([name]) for name in range(9))):
        model.sessions.close(name)
    model.fed.clear()
    return Drafter(model, Translation(own, theirs))


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    """Beginnings of stories in the target's tokens."""
    return tokenised(TARGET, 12)


def generate(
    drafter: Drafter, verifier: Engine, prompt: tuple[int, ...], params: SamplingParams, most: int
) -> tuple[Generation, list[int]]:
    """Rounds as the orchestrator runs them: the generation, and the drafts accepted per round."""
    generation = Generation(ID, prompt, params, most, frozenset({END}))
    accepted = []
    while generation.finish is None:
        context = generation.context(generation.drafter)
        proposal: Proposal = drafter.engine.run(drafter.job(context, SHAPE, params))
        assert 0 <= proposal.expected <= len(proposal.draft) <= SHAPE.levels
        assert len(drafter.engine.sessions) == 1 or not proposal.draft.tokens
        generation.drafted(proposal)
        context = generation.context(generation.verifier)
        verdict: Verdict = verifier.run(verify(verifier.sessions, context, proposal.draft, params))
        accepted.append(generation.advance(proposal.draft, verdict).accepted)
    drafter.mirrors.close(ID)
    drafter.engine.sessions.close(ID)
    verifier.sessions.close(ID)
    return generation, accepted


def test_the_text_is_the_targets_and_more_than_one_token_of_a_draft_stands(
    drafter: Drafter, verifier: Engine, target: PreTrainedModel, prompts: list[tuple[int, ...]]
) -> None:
    accepted: list[int] = []
    for prompt in prompts:
        generation, stood = generate(drafter, verifier, prompt, GREEDY, 40)
        assert generation.completion == reference.generate(target, list(prompt), 40)
        accepted += stood
    assert sum(accepted) / len(accepted) > 1.0
    assert len(drafter.mirrors) == 0
    assert drafter.engine.sessions.counts.misses == 0


def test_a_drawn_text_is_the_targets_too(
    drafter: Drafter, verifier: Engine, target: PreTrainedModel, prompts: list[tuple[int, ...]]
) -> None:
    for seed, prompt in enumerate(prompts[:3]):
        params = SamplingParams(temperature=0.7, seed=seed)
        generation, _ = generate(drafter, verifier, prompt, params, 40)
        assert generation.completion == reference.sample(target, list(prompt), 40, params, END)


def test_what_was_fed_is_not_fed_again(drafter: Drafter, prompts: list[tuple[int, ...]]) -> None:
    said = (prompts[0] * 20)[:300]
    first = drafter.propose(Context(ID, 1, 0, said))
    assert first.cached_len == len(said)
    assert drafter.engine.fed[0] > 200
    drafter.engine.fed.clear()
    more = first.draft.tokens[:1]
    second = drafter.propose(Context(ID, 2, first.cached_len, more, first.epoch))
    assert second.cached_len == len(said) + 1
    assert max(drafter.engine.fed) <= 8


def test_what_is_not_worth_it_is_not_drafted(
    drafter: Drafter, prompts: list[tuple[int, ...]]
) -> None:
    picky = DraftShape(levels=4, nodes=4, worth=1.0)
    none = drafter.propose(Context(ID, 1, 0, prompts[0]), picky)
    assert (len(none.draft), none.cached_len, len(drafter.engine.fed)) == (0, len(prompts[0]), 1)
    unsure = DraftShape(levels=4, nodes=4, confidence=1.0)
    short = drafter.propose(Context(ID, 2, none.cached_len, (5,), none.epoch), unsure)
    assert len(short.draft) <= 2
    assert drafter.engine.fed[1:] == [1]


def test_by_the_rule_top1_the_likeliest_is_expected_to_stand(
    drafter: Drafter, prompts: list[tuple[int, ...]]
) -> None:
    drawn, context = SamplingParams(temperature=1.0, rule=Rule.TOP1), Context(ID, 1, 0, prompts[1])
    told = drafter.propose(context, SHAPE, drawn)
    certain = drafter.propose(replace(context, turn=2), SHAPE)
    assert (told.draft, told.expected) == (certain.draft, certain.expected)


def test_a_text_that_outgrows_the_draft_model_gets_no_draft_and_goes_on_without(
    drafter: Drafter, prompts: list[tuple[int, ...]]
) -> None:
    said = (prompts[0] * 50)[: CONTEXT - 100]
    held = drafter.propose(Context(ID, 1, 0, said))
    beyond = Context(ID, 2, held.cached_len, (prompts[1] * 50)[:200], held.epoch)
    none = drafter.propose(beyond)
    assert (len(none.draft), none.cached_len, none.epoch) == (0, held.cached_len, held.epoch)
    back = drafter.propose(Context(ID, 3, none.cached_len, prompts[2], none.epoch))
    assert back.draft.tokens
    assert back.cached_len == len(said) + len(prompts[2])


def test_what_is_not_mirrored_or_was_lost_is_a_miss(
    drafter: Drafter, prompts: list[tuple[int, ...]]
) -> None:
    with pytest.raises(SessionMiss):
        drafter.propose(Context(ID, 1, 3, prompts[0], 7))
    held = drafter.propose(Context(ID, 2, 0, prompts[0]))
    with pytest.raises(SessionMiss):
        drafter.propose(Context(ID, 3, held.cached_len + 1, (5,), held.epoch))
    drafter.engine.sessions.close(ID)  # as if it was evicted
    with pytest.raises(SessionMiss):
        drafter.propose(Context(ID, 4, held.cached_len, (5,), held.epoch))
    again = drafter.propose(Context(ID, 5, 0, prompts[0]))
    assert (again.draft, again.epoch) != (held.draft, held.epoch)
    with pytest.raises(StaleTurn):
        drafter.propose(Context(ID, 5, 0, (9,)))
    after = drafter.propose(Context(ID, 6, again.cached_len, (5,), again.epoch))
    assert after.cached_len == len(prompts[0]) + 1


def test_a_job_that_ends_early_leaves_no_more_than_the_base_that_it_kept(
    drafter: Drafter, prompts: list[tuple[int, ...]]
) -> None:
    said, base = prompts[0], len(prompts[0]) // 2
    held = drafter.propose(Context(ID, 1, 0, said))
    job = drafter.job(Context(ID, 2, base, (5, 6, 7), held.epoch))
    next(job)
    job.close()
    with pytest.raises(SessionMiss):
        drafter.propose(Context(ID, 3, base + 1, (5,), held.epoch))
    resumed = drafter.propose(Context(ID, 4, base, said[base:], held.epoch))
    assert resumed.draft == held.draft


def test_mirrors_are_bounded_and_forget_those_used_least_recently(
    drafter: Drafter, prompts: list[tuple[int, ...]]
) -> None:
    drafter.mirrors = Mirrors(2)
    held = [
        drafter.propose(Context(bytes([name]), 1, 0, prompts[0], client=b""))
        for name in range(MOST)
    ]
    assert len(drafter.mirrors) == 2
    with pytest.raises(SessionMiss):
        drafter.propose(Context(b"\0", 2, len(prompts[0]), (5,), held[0].epoch))
    drafter.propose(Context(b"\1", 2, len(prompts[0]), (5,), held[1].epoch))
    for name in range(MOST):
        drafter.mirrors.close(bytes([name]))
        drafter.mirrors.close(bytes([name]))
    assert len(drafter.mirrors) == 0
