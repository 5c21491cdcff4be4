"""The state of one request: for any commits, the text is what they say, up to its end."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.orchestrator.rounds.generation import Finish, Generation
from tandem.protos.streams import PromptLogprobs
from tandem.protos.types import SamplingParams, TokenLogprobs

PROMPT = (10, 11, 12)
commits = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=9), min_size=1, max_size=12)


def generation(
    limit: int = 1000, stop: frozenset[int] = frozenset(), completion: tuple[int, ...] = ()
) -> Generation:
    """A generation that emits at most `limit` tokens."""
    return Generation(b"s" * 16, PROMPT, SamplingParams(), limit, stop, list(completion))


@given(commits, st.frozensets(st.integers(0, 6), max_size=2), st.integers(1, 20))
def test_the_text_ends_with_the_first_stop_token_or_at_the_limit(
    story: list[list[int]], stop: frozenset[int], limit: int
) -> None:
    endless = list(chain(*story))
    end = next((i + 1 for i, token in enumerate(endless) if token in stop), len(endless) + 1)
    state, committed = generation(limit, stop), []
    for tokens in story:
        if state.finish is None:
            committed += state.extend(state.length, tokens)
    assert state.completion == committed == endless[: min(end, limit)]
    expected = (
        Finish.STOP
        if end <= min(limit, len(endless))
        else Finish.LENGTH
        if len(endless) >= limit
        else None
    )
    assert state.finish is expected
    assert state.matched_token_id == (state.completion[-1] if expected is Finish.STOP else None)
    assert state.length == len(PROMPT) + len(state.completion) <= state.until


@given(commits, st.data())
def test_what_a_commit_repeats_is_committed_once(
    story: list[list[int]], data: st.DataObject
) -> None:
    state, whole = generation(), list(chain(*story))
    for tokens in story:
        back = data.draw(st.integers(0, len(state.completion)))
        known = state.completion[len(state.completion) - back :]
        assert state.extend(state.length - back, [*known, *tokens]) == tuple(tokens)
    assert state.completion == whole


def test_a_commit_that_leaves_a_gap_is_refused() -> None:
    with pytest.raises(AssertionError, match="gap"):
        generation().extend(len(PROMPT) + 1, (5,))


def test_what_is_told_of_a_prompt_again_is_taken_once() -> None:
    one, two = TokenLogprobs(-1.0), TokenLogprobs(-2.0)
    state = Generation(b"s" * 16, PROMPT, SamplingParams(), 0, prompt_logprobs=3)
    assert state.wanted_prompt_logprobs == PromptLogprobs(1, 3, 3)
    assert state.take_prompt_logprobs(1, [one]) == (one,)
    assert state.wanted_prompt_logprobs == PromptLogprobs(2, 3, 3) and state.finish is None
    with pytest.raises(AssertionError, match="gap"):
        other = Generation(b"s", PROMPT, SamplingParams(), 0, prompt_logprobs=3)
        other.take_prompt_logprobs(2, [two])
    assert state.take_prompt_logprobs(1, [one, two]) == (two,)
    assert state.wanted_prompt_logprobs is None and state.finish is Finish.LENGTH
    assert state.take_prompt_logprobs(len(PROMPT), [one]) == (), "that is of the completion"


@given(commits, commits)
def test_a_resumed_generation_goes_on_as_if_nothing_had_happened(
    before: list[list[int]], after: list[list[int]]
) -> None:
    whole = generation(limit=30)
    for tokens in before:
        if whole.finish is None:
            whole.extend(whole.length, tokens)
    resumed = generation(limit=30, completion=tuple(whole.completion))
    for tokens in after:
        if whole.finish is None:
            start = whole.length
            assert whole.extend(start, tokens) == resumed.extend(start, tokens)
    assert (whole.completion, whole.until) == (resumed.completion, resumed.until)


def test_every_opening_is_of_everything_and_has_a_turn_of_its_own() -> None:
    state = generation(completion=(1, 2))
    state.turn = 7
    contexts = [state.context(), state.context()]
    assert [context.turn for context in contexts] == [8, 9]
    for context in contexts:
        assert (context.base, context.epoch, context.tokens) == (0, 0, (*PROMPT, 1, 2))
