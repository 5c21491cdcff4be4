"""One request's state: whatever drafts and verdicts come, the text is exact and the cursors are
honest.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.generation import Advance, Finish, Generation
from protos import tree
from protos.types import NO_DRAFT, Draft, Proposal, SamplingParams, Verdict

PROMPT = (10, 11, 12)
EPOCH = 5


def generation(
    limit: int = 1000, stop: frozenset[int] = frozenset(), completion: tuple[int, ...] = ()
) -> Generation:
    """A generation that emits at most `limit` tokens."""
    return Generation(b"s" * 16, PROMPT, SamplingParams(), limit, stop, list(completion))


@dataclass(frozen=True)
class Answers:
    """What the two services say in one round: a tree, how much of its trunk the drafter holds, and
    a path.
    """

    draft: Draft
    held: int
    path: tuple[int, ...]
    next_token: int

    @property
    def emitted(self) -> tuple[int, ...]:
        """The tokens that the verdict adds."""
        return (*(self.draft.tokens[node] for node in self.path), self.next_token)


@st.composite
def answers(draw: st.DrawFn) -> Answers:
    size = draw(st.integers(0, 8))
    tokens = tuple(draw(st.lists(st.integers(0, 6), min_size=size, max_size=size)))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    node, path = draw(st.integers(-1, size - 1)), []
    while node >= 0:
        path.append(node)
        node = parents[node]
    held = draw(st.integers(0, tree.trunk(parents)))
    return Answers(Draft(tokens, parents), held, tuple(path[::-1]), draw(st.integers(0, 6)))


rounds = st.lists(answers(), min_size=1, max_size=12)


def play(state: Generation, told: Answers) -> Advance:
    """One round with these answers."""
    state.context(state.drafter)
    state.drafted(Proposal(told.draft, state.length + told.held, EPOCH))
    state.context(state.verifier)
    return state.advance(
        told.draft, Verdict(told.path, told.next_token, state.length + len(told.path), EPOCH)
    )


def committed(state: Generation) -> tuple[int, ...]:
    """Prompt and completion."""
    return state.prompt + tuple(state.completion)


@given(rounds)
def test_the_completion_is_exactly_what_the_verdicts_say(story: list[Answers]) -> None:
    state = generation()
    for told in story:
        assert play(state, told).tokens == told.emitted
    assert state.completion == [token for told in story for token in told.emitted]
    assert state.length == len(PROMPT) + len(state.completion)
    assert state.finish is None


@given(rounds)
def test_a_context_and_what_the_service_keeps_make_the_committed_tokens(
    story: list[Answers],
) -> None:
    """The caches are played too: each holds what it was told and what it added."""
    state = generation()
    drafter: tuple[int, ...] = ()
    verifier: tuple[int, ...] = ()
    for told in story:
        context = state.context(state.drafter)
        assert context.base <= len(drafter) and context.tokens
        drafter = drafter[: context.base] + context.tokens
        assert drafter == committed(state)
        drafter += told.draft.tokens[: told.held]
        state.drafted(Proposal(told.draft, len(drafter), EPOCH))
        context = state.context(state.verifier)
        assert context.base <= len(verifier) and context.tokens
        verifier = verifier[: context.base] + context.tokens
        assert verifier == committed(state)
        verifier += tuple(told.draft.tokens[node] for node in told.path)
        state.advance(told.draft, Verdict(told.path, told.next_token, len(verifier), EPOCH))
        assert committed(state)[: state.drafter.cached] == drafter[: state.drafter.cached]
        assert committed(state)[: state.verifier.cached] == verifier
        assert state.verifier.cached == state.length - 1


@given(answers())
def test_the_drafter_keeps_all_that_stands_of_what_it_holds(told: Answers) -> None:
    state = generation()
    before = state.length
    play(state, told)
    standing = next((i for i in range(told.held) if told.path[i : i + 1] != (i,)), told.held)
    assert state.drafter.cached == before + standing


def test_a_chain_that_stands_wholly_leaves_the_drafter_two_tokens_behind() -> None:
    state = generation()
    play(state, Answers(Draft.chain((1, 2, 3)), 2, (0, 1, 2), 4))
    assert state.context(state.drafter).tokens == (3, 4)
    assert state.context(state.verifier).tokens == (4,)


def test_a_round_without_a_drafter_leaves_its_cursor_where_it_was() -> None:
    state = generation()
    play(state, Answers(Draft.chain((1, 2)), 1, (), 3))
    assert state.drafter.cached == len(PROMPT)
    state.advance(NO_DRAFT, Verdict((), 4, 4, EPOCH))
    assert state.context(state.drafter).tokens == (3, 4)


@given(rounds, st.frozensets(st.integers(0, 6), max_size=2), st.integers(1, 20))
def test_the_text_ends_with_the_first_stop_token_or_at_the_limit(
    story: list[Answers], stop: frozenset[int], limit: int
) -> None:
    endless = [token for told in story for token in told.emitted]
    end = next((i + 1 for i, token in enumerate(endless) if token in stop), len(endless) + 1)
    state, advances = generation(limit, stop), []
    for told in story:
        if state.finish is None:
            advances.append((told, play(state, told)))
    assert state.completion == endless[: min(end, limit)]
    expected = (
        Finish.STOP
        if end <= min(limit, len(endless))
        else Finish.LENGTH
        if len(endless) >= limit
        else None
    )
    assert state.finish is expected
    assert state.matched_token_id == (state.completion[-1] if expected is Finish.STOP else None)
    assert state.remaining == limit - len(state.completion)
    for told, advance in advances:
        assert advance.drafted == len(told.draft)
        assert advance.accepted == min(len(told.path), len(advance.tokens))
        assert advance.tokens == told.emitted[: len(advance.tokens)]


def test_a_stop_token_within_the_accepted_path_cuts_it_and_the_rest_is_not_counted() -> None:
    state = generation(stop=frozenset({2}))
    advance = play(state, Answers(Draft.chain((1, 2, 3)), 2, (0, 1, 2), 4))
    assert advance == Advance((1, 2), drafted=3, accepted=2)
    assert (state.finish, state.matched_token_id) == (Finish.STOP, 2)


def test_a_stop_token_as_the_last_allowed_token_is_a_stop() -> None:
    state = generation(limit=1, stop=frozenset({2}))
    play(state, Answers(NO_DRAFT, 0, (), 2))
    assert state.finish is Finish.STOP


def test_what_is_barred_from_a_beginning_is_not_sent_behind_it() -> None:
    state = generation()
    state.sampling = SamplingParams(min_new_tokens=3, end_tokens=(5, 6))
    play(state, Answers(Draft.chain((1,)), 1, (0,), 2))
    assert (state.sampling.min_new_tokens, state.sampling.end_tokens) == (3, (5, 6))
    play(state, Answers(NO_DRAFT, 0, (), 3))
    assert state.sampling == SamplingParams()


def test_turns_grow_on_each_service_by_itself_also_after_it_forgot() -> None:
    state = generation()
    assert [state.context(state.drafter).turn for _ in range(3)] == [1, 2, 3]
    state.drafter.forget()
    assert state.context(state.drafter).turn == 4
    assert state.context(state.verifier).turn == 1


def test_a_service_that_forgot_is_sent_everything_as_an_opening() -> None:
    state = generation()
    play(state, Answers(Draft.chain((1, 2)), 1, (0,), 3))
    for cursor in (state.drafter, state.verifier):
        assert state.context(cursor).epoch == EPOCH
        cursor.forget()
        opening = state.context(cursor)
        assert (opening.base, opening.tokens, opening.epoch) == (0, committed(state), 0)


@given(rounds, rounds)
def test_a_resumed_generation_goes_on_as_if_nothing_had_happened(
    before: list[Answers], after: list[Answers]
) -> None:
    whole = generation(limit=30)
    for told in before:
        if whole.finish is None:
            play(whole, told)
    resumed = generation(limit=30, completion=tuple(whole.completion))
    assert resumed.context(resumed.verifier).tokens == committed(whole)
    for told in after:
        if whole.finish is None:
            assert play(whole, told) == play(resumed, told)
    assert (committed(whole), whole.remaining) == (committed(resumed), resumed.remaining)


@pytest.mark.parametrize("start", range(len(PROMPT) + 3))
def test_a_context_may_begin_anywhere_in_prompt_or_completion(start: int) -> None:
    state = generation(completion=(1, 2, 3))
    state.verifier.cached = start
    assert state.context(state.verifier).tokens == (*PROMPT, 1, 2, 3)[start:]
