"""The chains of a drafter with its own tokenizer continue the target's text, in the target's
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from transformers import PreTrainedModel

from tandem.drafter_service.foreign.chains import EXTRA_TOKENS
from tandem.protos.errors import SessionMiss, StaleTurn
from tandem.protos.streams import Proposal
from tandem.protos.types import Context, DraftShape, Rule, SamplingParams, Schedule
from tests import reference
from tests.services.foreign import FOREIGN, ID, SHAPE, Drafter, Tokens
from tests.services.jobs import CONTEXT, MOST, Engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Return the foreign draft model, loaded once."""
    return Engine(FOREIGN, exact=False)


@pytest.fixture
def drafter(engine: Engine) -> Iterator[Drafter]:
    """Return a drafter without open sessions; fail if memory is left behind."""
    engine.fed.clear()
    drafter = Drafter(engine)
    yield drafter
    for running in drafter.running:
        running.job.close()
    for name in (ID, *(bytes([name]) for name in range(9))):
        engine.sessions.close(name)
    assert engine.sessions.usage == 0


def right(proposal: Proposal, text: Tokens) -> int:
    """Return how many tokens of a chain equal the text."""
    found = 0
    for token, true in zip(proposal.tokens, text[proposal.behind :], strict=False):
        if token != true:
            break
        found += 1
    return found


def test_more_than_one_token_of_a_chain_is_the_targets(
    drafter: Drafter, target: PreTrainedModel, prompts: list[Tokens]
) -> None:
    found, expected = [], 0.0
    for turn, prompt in enumerate(prompts[:4], 1):
        text = prompt + tuple(reference.generate(target, list(prompt), 30))
        running, length = drafter.opened(Context(ID, turn, 0, prompt), lockstep=True), len(prompt)
        (proposal,) = running.settle()
        numbers = 1
        while length < len(text) - 4:
            assert proposal.behind == length and len(proposal.tokens) <= SHAPE.levels
            assert (proposal.first, proposal.source, proposal.epoch) == (numbers, turn, 0)
            assert proposal.parents == (0, *range(numbers, numbers + 9))[: len(proposal.tokens)]
            assert (
                len(proposal.scores) == len(proposal.tokens)
                and max(proposal.scores, default=0) <= 0
            )
            numbers += len(proposal.tokens)
            found.append(right(proposal, text))
            score = 0.0
            for each in proposal.scores:
                score += each
                expected += 2.718281828**score
            step = found[-1] + 1
            running.tell(length, text[length : length + step])
            length += step
            (proposal,) = running.settle()
        running.job.close()
    assert sum(found) / len(found) > 1.0
    assert 0.5 < expected / sum(found) < 1.5, "its scores are honest"
    assert len(drafter.texts) == 0
    assert drafter.engine.sessions.counts.misses == 0


def test_what_was_fed_is_not_fed_again(drafter: Drafter, prompts: list[Tokens]) -> None:
    said = (prompts[0] * 20)[:300]
    running = drafter.opened(Context(ID, 1, 0, said))
    (first,) = running.settle()
    assert drafter.engine.fed[0] > 200
    drafter.engine.fed.clear()
    running.tell(300, (first.tokens[0], 9))
    (second,) = running.settle()
    assert second.behind == 302 and max(drafter.engine.fed) <= 8


def test_a_chain_that_still_lies_ahead_is_not_drafted_again(
    drafter: Drafter, prompts: list[Tokens]
) -> None:
    long = DraftShape.chain(8)
    for turn, lockstep in enumerate((False, True), 1):
        running = drafter.opened(Context(ID, turn, 0, prompts[0]), shape=long, lockstep=lockstep)
        (proposal,) = running.settle()
        assert len(proposal.tokens) >= 4
        length = len(prompts[0])
        for place, token in enumerate(proposal.tokens, 1):
            running.tell(length + place - 1, (token,))
            again = running.settle()
            assert len(again) == (lockstep or len(proposal.tokens) - place < 2)
            if again and not lockstep:
                assert again[0].behind == length + place
                break
        running.job.close()


def test_the_context_goes_on_from_what_is_cached_and_says_the_same(
    drafter: Drafter, prompts: list[Tokens]
) -> None:
    said = prompts[0]
    first = drafter.once(Context(ID, 1, 0, said))
    assert first.cached_len == len(said) and first.epoch
    more = (first.tokens[0], 11)
    second = drafter.once(Context(ID, 2, len(said), more, first.epoch))
    assert second.cached_len == second.behind == len(said) + 2
    fresh = drafter.once(Context(b"\1", 1, 0, said + more))
    assert (second.tokens, second.parents) == (fresh.tokens, fresh.parents)


def test_by_the_rule_top1_the_likeliest_is_expected(
    drafter: Drafter, prompts: list[Tokens]
) -> None:
    drawn, context = SamplingParams(temperature=1.0, rule=Rule.TOP1), Context(ID, 1, 0, prompts[1])
    proposal = drafter.once(context, sampling=drawn)
    certain = drafter.once(replace(context, turn=2))
    assert (proposal.tokens, proposal.scores) == (
        certain.tokens,
        pytest.approx(certain.scores, abs=1e-3),
    )


def test_a_text_that_outgrows_the_draft_model_gets_no_draft(
    drafter: Drafter, prompts: list[Tokens]
) -> None:
    said = (prompts[0] * 50)[: CONTEXT - 100]
    held = drafter.once(Context(ID, 1, 0, said))
    beyond = (prompts[1] * 50)[:200]
    none = drafter.once(Context(ID, 2, held.cached_len, beyond, held.epoch))
    assert (none.tokens, none.cached_len, none.epoch) == ((), held.cached_len, held.epoch)
    back = drafter.once(Context(ID, 3, none.cached_len, prompts[2], none.epoch))
    assert back.tokens and back.cached_len == len(said) + len(prompts[2])
    running = drafter.opened(Context(ID, 4, 0, said), lockstep=True)
    assert [len(proposal.tokens) > 0 for proposal in running.settle()] == [True]
    length = len(said)
    for part in (beyond, (5,), (6, 7)):
        running.tell(length, part)
        length += len(part)
        (proposal,) = running.settle()
        assert (proposal.behind, proposal.tokens) == (length, ())
    running.job.close()
    late = drafter.opened(Context(ID, 5, 0, said + beyond), lockstep=True)
    late.tell(len(said) + 200, (5,))
    late.settle()
    assert [proposal.behind for proposal in late.stream.said] == [len(said) + 200, len(said) + 201]


def test_without_levels_there_is_nothing(drafter: Drafter, prompts: list[Tokens]) -> None:
    none = drafter.once(Context(ID, 1, 0, prompts[0]), shape=DraftShape(0))
    assert (none.tokens, none.cached_len, drafter.engine.fed) == ((), 0, [])


def test_the_heuristic_goes_further_while_it_is_right(
    drafter: Drafter, prompts: list[Tokens]
) -> None:
    shape = replace(DraftShape.chain(3), schedule=Schedule.HEURISTIC)
    running, length = drafter.opened(Context(ID, 1, 0, prompts[0]), shape=shape), len(prompts[0])
    (proposal,) = running.settle()
    running.tell(length, proposal.tokens)
    (longer,) = running.settle()
    assert len(proposal.tokens) <= 3 < len(longer.tokens) <= 5 + EXTRA_TOKENS
    length += len(proposal.tokens)
    wrong = (longer.tokens[0] + 1) % 4000
    running.tell(length, (wrong,))
    assert all(len(proposal.tokens) <= 4 for proposal in running.settle())


def test_what_is_not_mirrored_is_a_miss(drafter: Drafter, prompts: list[Tokens]) -> None:
    held = drafter.once(Context(ID, 2, 0, prompts[0]))
    for turn, base, epoch, error in (
        (3, held.cached_len + 1, held.epoch, SessionMiss),
        (3, held.cached_len, held.epoch + 1, SessionMiss),
        (2, 0, 0, StaleTurn),
    ):
        with pytest.raises(error):
            drafter.once(Context(ID, turn, base, (5,), epoch))
    running = drafter.opened(Context(ID, 4, 0, prompts[0]))
    running.tell(len(prompts[0]) + 1, (5,))
    with pytest.raises(SessionMiss):
        running.settle()


def test_a_session_that_was_lost_is_fed_again(drafter: Drafter, prompts: list[Tokens]) -> None:
    held = drafter.once(Context(ID, 1, 0, prompts[0]))
    drafter.engine.sessions.close(ID)  # closes the session, as an eviction does
    again = drafter.once(Context(ID, 2, held.cached_len, (5,), held.epoch))
    assert again.epoch != held.epoch
    fresh = drafter.once(Context(b"\1", 1, 0, (*prompts[0], 5)))
    assert again.tokens == fresh.tokens


def test_a_job_that_ends_early_changes_nothing_that_is_answered_later(
    drafter: Drafter, prompts: list[Tokens]
) -> None:
    said, base = prompts[0], len(prompts[0]) // 2
    held = drafter.once(Context(ID, 1, 0, said))
    drafter.opened(Context(ID, 2, base, (5, 6, 7), held.epoch), once=True).job.close()
    resumed = drafter.once(Context(ID, 3, base, said[base:], held.epoch))
    assert (resumed.tokens, resumed.scores) == (held.tokens, pytest.approx(held.scores, abs=1e-3))
    running = drafter.opened(Context(ID, 4, 0, said))
    running.settle()
    running.tell(len(said), prompts[1] + prompts[2])
    running.step()
    running.job.close()
    after = drafter.once(Context(ID, 5, 0, said + prompts[1]))
    fresh = drafter.once(Context(b"\1", 1, 0, said + prompts[1]))
    assert after.tokens == fresh.tokens


def test_mirrors_are_bounded_and_forget_those_used_least_recently(
    engine: Engine, drafter: Drafter, prompts: list[Tokens]
) -> None:
    few = Drafter(engine, texts=2)
    held = [few.once(Context(bytes([name]), 1, 0, prompts[0])) for name in range(MOST)]
    assert len(few.texts) == 2
    with pytest.raises(SessionMiss):
        few.once(Context(b"\0", 2, len(prompts[0]), (5,), held[0].epoch))
    few.once(Context(b"\1", 2, len(prompts[0]), (5,), held[1].epoch))
    for name in range(MOST):
        few.texts.close(bytes([name]))
        few.texts.close(bytes([name]))
    assert len(few.texts) == 0
