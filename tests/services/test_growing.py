"""A drafter's growing trees on the real draft model: whatever happened before, a node's logits are
those of its text.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tandem.drafter_service.tree.worth import Conditions
from tandem.engine.cache.sessions import RETRY_SECONDS
from tandem.engine.forward.segment import Segment
from tandem.models import DRAFT
from tandem.protos import tree
from tandem.protos.errors import Busy
from tandem.protos.types import Context, DraftShape, SamplingParams
from tests import reference
from tests.ggufs import MakeGGUF
from tests.services.jobs import CONTEXT, Engine
from tests.services.trees import GREEDY, Drafter, Tokens

DRAWN = SamplingParams(0.7, seed=3)
PENALISED = SamplingParams(0.7, seed=3, repetition_penalty=1.3, prompt_length=9)


def fresh(engine: Engine, text: Tokens) -> torch.Tensor:
    """Return the model's logits after a text that is new to it, [vocab]."""
    table = engine.forward.pool.allocate(len(text))
    assert table is not None
    (logits,) = engine.run(Segment(table, 0, text, tree.chain(len(text)), 1))
    engine.forward.pool.release(table)
    return logits[0]


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [("fast", PENALISED), ("exact", GREEDY), ("q4_0", GREEDY)],
)
def test_after_any_commits_the_logits_of_a_node_are_those_of_its_text(
    kind: str, sampling: SamplingParams, make_gguf: MakeGGUF, prompts: list[Tokens]
) -> None:
    """Three sessions share passes as long as they have tokens to feed."""
    model = make_gguf(DRAFT, kind) if kind == "q4_0" else DRAFT
    engine, noise = Engine(model, kind != "fast", positions=2048), random.Random(5)
    drafters = [
        Drafter(engine, name, prompts[name], Conditions(), sampling=sampling) for name in range(3)
    ]
    checked = 0
    for turn in range(50):
        active = []
        for drafter in drafters:
            if segment := drafter.running.segment(noise):
                active.append((drafter, segment, drafter.texts(segment)))
        passed = engine.run(*(segment for _, segment, _ in active)) if active else []
        for (drafter, _, texts), logits in zip(active, passed, strict=True):
            for text, row in zip(texts, logits, strict=True):
                if turn % 6 == 0:
                    assert text[: len(drafter.receiver.text)] == drafter.receiver.text[: len(text)]
                    torch.testing.assert_close(row, fresh(engine, text), rtol=1e-3, atol=2e-3)
                    checked += 1
            drafter.running.take(logits)
        for drafter in drafters:
            drafter.hear()
            if noise.random() < 0.4:
                drafter.wander(noise)
    assert checked > 30
    for name, drafter in enumerate(drafters):
        assert len(drafter.receiver.text) > len(prompts[name]) + 20
        assert drafter.receiver.repeated == 0
    for drafter in drafters:
        drafter.close()
    assert engine.sessions.usage == 0


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_what_the_target_says_next_is_mostly_proposed_already(
    sampling: SamplingParams, drafters: Any, target: PreTrainedModel, prompts: list[Tokens]
) -> None:
    right = 0
    for prompt in prompts[:3]:
        drafter = drafters(prompt, sampling=sampling)
        for token in reference.sample(target, list(prompt), 16, sampling, -1):
            drafter.running.settle(4)
            drafter.hear()
            right += (token,) in drafter.receiver.ahead()
            drafter.goes_on((token,))
    assert right > 0.7 * 3 * 16


def test_what_is_not_worth_a_row_is_neither_fed_nor_sent(
    drafters: Any, prompts: list[Tokens]
) -> None:
    conditions = Conditions()
    drafter = drafters(prompts[1], conditions, shape=DraftShape(32, 4, 64))
    cheap = sum(len(proposal.tokens) for proposal in drafter.running.settle())
    conditions.price = 1.0
    dear = drafters(prompts[1], conditions, shape=DraftShape(32, 4, 64))
    few = sum(len(proposal.tokens) for proposal in dear.running.settle())
    assert 0 < few < cheap
    conditions.price = 0.0  # drafting is cheap again
    dear.running.settle()
    dear.hear(), drafter.hear()
    assert dear.receiver.ahead() == drafter.receiver.ahead()


def test_a_reader_that_is_too_far_behind_is_waited_for(
    drafters: Any, prompts: list[Tokens]
) -> None:
    drafter = drafters(prompts[0])
    drafter.running.step()
    drafter.running.stream.paused = True
    assert not drafter.running.step()
    drafter.running.stream.paused = False
    assert drafter.running.step()


def test_without_memory_a_tree_stays_as_it_is_and_the_text_goes_on(
    prompts: list[Tokens],
) -> None:
    engine = Engine(DRAFT, exact=False, positions=64)
    drafter = Drafter(engine, 1, prompts[0], Conditions(), shape=DraftShape(32, 8, 64))
    drafter.running.settle()
    drafter.hear()
    assert len(prompts[0]) < 64
    with pytest.raises(Busy) as refusal:
        for _ in range(64):
            drafter.goes_on((7,))
            drafter.running.settle()
    assert len(drafter.receiver.text) == 65
    assert refusal.value.retry_after == RETRY_SECONDS, "a tree that does not grow is no refusal"
    drafter.close()
    assert engine.sessions.usage == 0


def test_a_text_that_fills_the_context_is_drafted_for_no_more(
    drafters: Any, prompts: list[Tokens]
) -> None:
    text = (prompts[0] * 100)[: CONTEXT - 6]
    drafter = drafters(text)
    drafter.running.settle()
    drafter.hear()
    assert 0 < max(map(len, drafter.receiver.ahead())) <= 6
    drafter.goes_on((5,) * 6)
    assert drafter.running.settle() == []
    drafter.goes_on((5,) * 40)
    assert drafter.running.settle() == []


def test_a_session_that_ends_midway_keeps_its_text_for_the_next_opening(
    engine: Engine, drafters: Any, prompts: list[Tokens]
) -> None:
    drafter = drafters(prompts[2])
    drafter.running.settle(3)
    drafter.hear()
    drafter.goes_on(max(drafter.receiver.ahead(), key=len)[:2])
    drafter.running.settle(2)
    drafter.running.job.close()
    text = drafter.receiver.text
    engine.fed.clear()
    again = Drafter(engine, 0, text, Conditions(), context=Context(drafter.name, 2, 0, text))
    again.running.settle()
    assert engine.fed[0] <= 2
    other = drafters(text)
    other.running.settle()
    again.hear(), other.hear()
    assert again.receiver.ahead() == other.receiver.ahead()
    again.close()


def test_many_pending_tokens_are_fed_in_pieces_of_one_pass(
    engine: Engine, drafters: Any, prompts: list[Tokens]
) -> None:
    """A longer segment would count as a prompt, and commits would have to wait until it is fed."""
    drafter = drafters(prompts[0])
    drafter.running.step()
    drafter.goes_on(prompts[1][:7] * 5)
    engine.fed.clear()
    drafter.running.step()
    drafter.goes_on((9, 8))
    drafter.running.settle(2)
    assert engine.fed == [16, 16, 5]
    drafter.running.settle()
    drafter.hear()
    assert drafter.receiver.ahead()
