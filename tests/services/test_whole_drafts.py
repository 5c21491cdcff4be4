"""Drafts that are made as a whole on the real draft model: after every newest commit, or once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tandem.drafter_service.tree.worth import Conditions
from tandem.protos.errors import SessionMiss
from tandem.protos.types import Context, DraftShape, Method, Rule, SamplingParams
from tandem.protos.wire.drafting import draft_of
from tests.services.jobs import CONTEXT, Engine
from tests.services.trees import Drafter, Tokens

WHOLE = [
    {"lockstep": True},
    {"lockstep": True, "sampling": SamplingParams(0.7, seed=3, rule=Rule.REJECT)},
    {"lockstep": True, "sampling": SamplingParams(0.7, seed=3, rule=Rule.TOP1)},
    {"shape": DraftShape(4, 3, 12, Method.MEDUSA_LITE)},
]


@pytest.mark.parametrize("asked", WHOLE, ids=["lockstep", "reject", "top1", "medusa"])
def test_a_whole_draft_behind_every_newest_commit_is_the_one_that_begins_there(
    asked: dict[str, Any], drafters: Any, prompts: list[Tokens]
) -> None:
    first = drafters(prompts[3], **asked)
    text, noise = prompts[3], random.Random(1)
    for turn in range(5):
        (proposal,) = first.running.settle()
        once = drafters(text, **asked, once=True)
        (alone,) = once.running.settle()
        assert once.running.step_input is None
        mine, theirs = draft_of(proposal), draft_of(alone)
        assert (mine.tokens, mine.parents) == (theirs.tokens, theirs.parents)
        for one, other in zip(mine.distributions, theirs.distributions, strict=True):
            weights = dict(zip(other.tokens, other.weights, strict=True))
            for token, weight in zip(one.tokens, one.weights, strict=True):
                assert weights.get(token, 0) == pytest.approx(weight, rel=0.05, abs=20)
        assert proposal.behind == alone.behind == len(text) and proposal.tokens
        assert not first.running.step(), "it waits"
        once.close()
        path: list[int] = []
        if turn % 2 == 0:  # the commit follows the draft
            node = proposal.first
            path = [proposal.tokens[0]]
            while (node in proposal.parents) and noise.random() < 0.7:
                child = proposal.parents.index(node)
                path.append(proposal.tokens[child])
                node = proposal.first + child
        new = (*path, noise.randrange(4000))
        first.running.tell(len(text), new)
        text += new


def test_a_single_draft_says_what_it_leaves_cached(
    engine: Engine, drafters: Any, prompts: list[Tokens]
) -> None:
    once = drafters(prompts[0], once=True, shape=DraftShape.chain(5))
    (proposal,) = once.running.settle()
    assert proposal.cached_len == len(prompts[0]) + 4 and proposal.epoch
    text, base = prompts[0] + proposal.tokens, proposal.cached_len
    context = Context(once.name, 2, base, (*text[base:], 77), proposal.epoch)
    engine.fed.clear()
    more = Drafter(engine, 0, (*text, 77), Conditions(), context=context, once=True)
    (second,) = more.running.settle()
    assert engine.fed[0] == 2 and second.behind == len(text) + 1
    missing = Context(once.name, 3, 500, (1,), proposal.epoch)
    with pytest.raises(SessionMiss):
        Drafter(engine, 0, text, Conditions(), context=missing).running.settle()


def test_where_nothing_fits_a_lockstep_is_answered_with_nothing(
    drafters: Any, prompts: list[Tokens]
) -> None:
    text = (prompts[0] * 100)[: CONTEXT - 1]
    drafter = drafters(text, lockstep=True)
    (proposal,) = drafter.running.settle()
    assert len({len(proposal.tokens), len(proposal.parents)}) == 1 and proposal.tokens
    for length in range(CONTEXT - 1, CONTEXT + 3):
        drafter.running.tell(length, (4,))
        (proposal,) = drafter.running.settle()
        assert (proposal.behind, proposal.tokens) == (length + 1, ())
