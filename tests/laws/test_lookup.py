"""The lookup drafter: what a slow, obvious search through the text would draft, whatever calls came
before, and a text that stays the target's own.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.generation import Generation
from orchestrator.lookup import LOOKED_AT, REACH, SIZES, Lookup
from orchestrator.policy import Policy
from orchestrator.rounds import run_round
from protos import tree
from protos.errors import SessionMiss, StaleTurn
from protos.types import Context, Draft, DraftShape, Proposal, SamplingParams
from tests.laws.table import TableVerifier, Tokens, continuation

Result = TypeVar("Result")
EPOCH, GREEDY = 5, SamplingParams()
CHAIN, TREE = DraftShape.chain(8), DraftShape(8, 3, 16)
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16

texts = st.lists(st.integers(0, 2), min_size=1, max_size=60).map(tuple)
shapes = st.builds(
    DraftShape, levels=st.integers(0, 9), branches=st.integers(1, 4), nodes=st.integers(0, 24)
)
steps = st.tuples(st.sampled_from((A, B)), st.integers(0, 40), texts, shapes)


def finished(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as done:
        work.send(None)
    return done.value.value  # type: ignore[no-any-return]


def ask(lookup: Lookup, context: Context, shape: DraftShape) -> Proposal:
    """One call."""
    return finished(lookup.propose(context, shape, GREEDY))


def drafted(text: Tokens, shape: DraftShape) -> Draft:
    """What a fresh drafter says to a text."""
    return ask(Lookup(EPOCH), Context(A, 1, 0, text), shape).draft


def earlier(text: Tokens) -> list[tuple[int, int]]:
    """Where the newest tokens occurred before and how many, found by looking everywhere."""
    found: dict[int, int] = {}
    for size in sorted(SIZES, reverse=True):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:] and end not in found:
                found[end] = size
    return list(found.items())[:LOOKED_AT]


def paths(text: Tokens, shape: DraftShape) -> list[Tokens]:
    """The paths of the tree that a slow search draws, in order."""
    known: list[Tokens] = []
    for end, matched in earlier(text):
        copied, levels = text, min(shape.levels, REACH * matched)
        for _ in range(levels):
            copied += (copied[end + len(copied) - len(text)],)
        for depth in range(1, levels + 1):
            path = copied[len(text) :][:depth]
            siblings = [each for each in known if len(each) == depth and each[:-1] == path[:-1]]
            if path in siblings:
                continue
            if len(siblings) >= shape.branches or len(known) >= shape.nodes:
                break
            known.append(path)
    return known


def paths_of(draft: Draft) -> list[Tokens]:
    """The tokens from the root to every node, in the order of the nodes."""
    return [
        tuple(draft.tokens[step] for step in tree.path(draft.parents, node))
        for node in range(len(draft))
    ]


@given(st.lists(steps, max_size=12))
def test_a_draft_is_what_a_search_through_the_whole_text_finds_whatever_was_asked_before(
    calls: list[tuple[bytes, int, Tokens, DraftShape]],
) -> None:
    lookup = Lookup(EPOCH)
    held: dict[bytes, Tokens] = {A: (), B: ()}
    for turn, (name, base, tokens, shape) in enumerate(calls, 1):
        base = min(base, len(held[name]))
        held[name] = held[name][:base] + tokens
        proposal = ask(lookup, Context(name, turn, base, tokens, EPOCH if base else 0), shape)
        assert paths_of(proposal.draft) == paths(held[name], shape)
        assert (proposal.cached_len, proposal.epoch) == (len(held[name]), EPOCH)


@given(texts, shapes)
def test_a_draft_is_a_tree_within_its_shape_without_twins(text: Tokens, shape: DraftShape) -> None:
    draft = drafted(text, shape)
    assert tree.problem(draft.parents) is None
    assert len(draft.tokens) == len(draft.parents) <= shape.nodes
    assert all(depth < shape.levels for depth in tree.depths(draft.parents))
    for children in tree.children(draft.parents):
        assert len({draft.tokens[child] for child in children}) == len(children) <= shape.branches


@given(texts, shapes)
def test_the_leading_nodes_are_the_only_draft_of_a_single_branch(
    text: Tokens, shape: DraftShape
) -> None:
    draft = drafted(text, shape)
    chain = drafted(text, DraftShape(shape.levels, 1, shape.nodes))
    assert tree.is_chain(chain.parents)
    assert draft.tokens[: len(chain)] == chain.tokens
    assert draft.parents[: len(chain)] == chain.parents


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9, unique=True), st.integers(1, 20))
def test_a_periodic_text_drafts_its_period_beyond_its_own_end(
    period: list[int], levels: int
) -> None:
    endless = period * 40
    for length in range(len(period) + SIZES[0], len(period) + SIZES[0] + 3):
        expected = tuple(endless[length:][:levels])
        draft = drafted(tuple(endless[:length]), DraftShape.chain(levels))
        assert draft == Draft.chain(expected)


def test_the_longest_match_leads_then_the_latest_and_others_branch_off() -> None:
    text = (1, 2, 3, 4, 5, 9, 3, 4, 6, 9, 3, 4, 7, 9, 1, 2, 3, 4)
    assert drafted(text, DraftShape(2, 3, 6)) == Draft((5, 9, 7, 9, 6, 9), (-1, 0, -1, 2, -1, 4))
    assert drafted(text, DraftShape.chain(3)) == Draft.chain((5, 9, 3))


def test_a_text_in_which_nothing_recurs_gives_no_draft() -> None:
    assert drafted((1, 2, 3, 4), DraftShape(4, 2, 8)) == Draft()


def test_a_short_match_is_trusted_for_few_tokens() -> None:
    text = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
    assert drafted((*text, 0, 1), DraftShape.chain(16)) == Draft.chain(text[1:][:REACH])
    assert drafted((*text, 0, 1, 2), DraftShape.chain(16)) == Draft.chain(text[2:][: 2 * REACH])


def test_what_was_dropped_is_never_drafted_again() -> None:
    lookup = Lookup(EPOCH)
    ask(lookup, Context(A, 1, 0, (1, 2, 3, 8, 1, 2, 3)), DraftShape.chain(1))
    kept = ask(lookup, Context(A, 2, 3, (9, 1, 2, 3), EPOCH), DraftShape(1, 4, 4))
    assert kept.draft == Draft.chain((9,))
    anew = ask(lookup, Context(A, 3, 0, (7, 1, 2, 3)), DraftShape(1, 4, 4))
    assert anew.draft == Draft()


def test_a_call_that_builds_on_what_is_not_held_misses_and_changes_nothing() -> None:
    lookup, shape = Lookup(EPOCH), DraftShape.chain(2)
    first = ask(lookup, Context(A, 1, 0, (1, 2, 1)), shape)
    for base, epoch in ((4, EPOCH), (3, EPOCH + 1), (0, EPOCH + 1), (3, 0)):
        with pytest.raises(SessionMiss):
            lookup.propose(Context(A, 2, base, (2,), epoch), shape, GREEDY).send(None)
    with pytest.raises(SessionMiss):
        lookup.propose(Context(B, 1, 1, (2,), EPOCH), shape, GREEDY).send(None)
    then = ask(lookup, Context(A, 2, first.cached_len, (2,), first.epoch), shape)
    assert then.draft == Draft.chain((1, 2))


def test_a_turn_that_is_not_above_the_last_is_stale_and_changes_nothing() -> None:
    lookup, shape = Lookup(EPOCH), DraftShape.chain(2)
    ask(lookup, Context(A, 7, 0, (1, 2, 1)), shape)
    for turn in (6, 7):
        with pytest.raises(StaleTurn):
            lookup.propose(Context(A, turn, 0, (3,)), shape, GREEDY).send(None)
    assert ask(lookup, Context(A, 8, 3, (2,), EPOCH), shape).draft == Draft.chain((1, 2))


def test_the_session_used_least_recently_goes_when_there_are_too_many() -> None:
    lookup, shape = Lookup(EPOCH, most=2), DraftShape.chain(2)
    ask(lookup, Context(A, 1, 0, (1,)), shape)
    ask(lookup, Context(B, 1, 0, (1,)), shape)
    ask(lookup, Context(A, 2, 1, (1,), EPOCH), shape)
    ask(lookup, Context(C, 1, 0, (1,)), shape)
    assert len(lookup) == 2
    with pytest.raises(SessionMiss):
        lookup.propose(Context(B, 2, 1, (1,), EPOCH), shape, GREEDY).send(None)
    assert ask(lookup, Context(A, 3, 2, (1,), EPOCH), shape).cached_len == 3


def test_a_closed_session_is_forgotten_and_closing_an_unknown_one_is_nothing() -> None:
    lookup, shape = Lookup(EPOCH), DraftShape.chain(2)
    ask(lookup, Context(A, 9, 0, (1, 2)), shape)
    finished(lookup.close(A))
    finished(lookup.close(A))
    assert len(lookup) == 0
    with pytest.raises(SessionMiss):
        lookup.propose(Context(A, 10, 2, (1,), EPOCH), shape, GREEDY).send(None)


@pytest.mark.parametrize("most", [1, 2], ids=["always evicted", "held"])
@pytest.mark.parametrize(
    "shape", [DraftShape.chain(8), DraftShape(8, 3, 16)], ids=["chain", "tree"]
)
async def test_the_text_is_the_targets_own_in_fewer_rounds_where_it_repeats_itself(
    shape: DraftShape, most: int
) -> None:
    """The table's model has at most 49 states, so its text is soon periodic."""
    lookup, verifier, prompt, count = Lookup(EPOCH, most), TableVerifier(), (2, 5, 1), 120
    generations = [Generation(name, prompt, GREEDY, count) for name in (A, B)]
    policies, rounds = [Policy.of(shape), Policy.of(shape)], 0
    while any(generation.finish is None for generation in generations):
        for generation, policy in zip(generations, policies, strict=True):
            if generation.finish is None:
                await run_round(generation, lookup, verifier, policy)
                rounds += 1
    for generation in generations:
        assert tuple(generation.completion) == continuation(prompt, count)
        assert generation.drafter.epoch == EPOCH
    assert rounds < count
