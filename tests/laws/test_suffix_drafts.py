"""Drafts by suffix are what a slow, plain search finds, and the chances of siblings add up to at
most one.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.protos import tree
from tandem.protos.streams import LONGEST_MATCH, Proposal
from tandem.protos.types import Draft, DraftShape
from tandem.protos.wire.drafting import draft_of
from tandem.verifier_service.suffix_drafts import (
    BOUNDARY,
    HALF_DOUBT_MATCH,
    MAX_MATCHES,
    MIN_MATCH_BEFORE_CHANGE,
    GrowingTokens,
    find_matches,
    least_match,
    suffix_proposal,
)

Tokens = tuple[int, ...]
texts = st.lists(st.integers(0, 2), min_size=1, max_size=60).map(tuple)
searched_texts = st.lists(st.integers(-1, 2), max_size=60).map(tuple)
shapes = st.builds(
    DraftShape, levels=st.integers(1, 9), branches=st.integers(1, 4), nodes=st.integers(0, 24)
)


def proposal(searched: Tokens, suffix: Tokens, shape: DraftShape, least: int = 1) -> Proposal:
    """Return what is proposed after a suffix."""
    found = np.array(searched, np.int32), np.array(suffix, np.int32)
    return suffix_proposal(*found, shape, len(suffix), least)


def in_itself(text: Tokens, shape: DraftShape) -> Draft:
    """Return what a text proposes from its own tokens."""
    return draft_of(proposal(text, text, shape))


def matching(searched: Tokens, end: int, suffix: Tokens) -> int:
    """Return how many tokens before a place match the end of a suffix."""
    most = min(LONGEST_MATCH, end, len(suffix))
    ends = (n for n in range(most) if searched[end - 1 - n] != suffix[-1 - n])
    return next(ends, most)


@given(searched_texts, texts, st.integers(1, 3))
def test_places_are_those_of_the_longest_matches_then_the_latest(
    searched: Tokens, suffix: Tokens, least: int
) -> None:
    found = [(matching(searched, end, suffix), end) for end in range(len(searched))]
    expected = sorted((each for each in found if each[0] >= least), reverse=True)[:MAX_MATCHES]
    arrays = np.array(searched, np.int32), np.array(suffix, np.int32)
    assert [
        *zip(*(each.tolist() for each in find_matches(*arrays, least)), strict=True)
    ] == expected


@pytest.mark.parametrize("period", [1, 2, 3])
def test_of_many_places_the_longest_match_is_found_however_early(period: int) -> None:
    suffix = tuple(range(1000, 1000 + LONGEST_MATCH))
    searched = (*suffix, 7, *suffix[-period:] * 20_000, 8)
    matched, ends = find_matches(np.array(searched, np.int32), np.array(suffix, np.int32), 1)
    assert (matched[0], ends[0]) == (LONGEST_MATCH, LONGEST_MATCH)


@given(searched_texts, texts, shapes)
def test_every_path_followed_the_suffix_somewhere_and_siblings_share_one_chance(
    searched: Tokens, suffix: Tokens, shape: DraftShape
) -> None:
    told = proposal(searched, suffix, shape)
    assert told.behind == len(suffix) and len(told.tokens) <= shape.nodes
    draft, sums = draft_of(told), defaultdict[int, float](float)
    assert max(tree.depths(draft.parents), default=-1) < shape.levels
    for node, (parent, score) in enumerate(zip(told.parents, told.scores, strict=True)):
        sums[parent] += math.exp(score)
        path = [draft.tokens[step] for step in tree.path(draft.parents, node)]
        assert BOUNDARY not in path
        ends = (
            end
            for end in range(1, len(searched))
            if searched[end - 1] == suffix[-1]
            or matching(searched, end - 1, suffix[:-1]) >= MIN_MATCH_BEFORE_CHANGE
        )
        assert any(
            path == [searched[end + step % (len(searched) - end)] for step in range(len(path))]
            for end in ends
        )
    assert all(sum_ < 1 for sum_ in sums.values())


def test_the_more_tokens_match_the_likelier_is_what_followed_and_most_often_leads() -> None:
    one = proposal((5, 1, 2), (9, 5), DraftShape.chain(1)).scores[0]
    two = proposal((9, 5, 1, 2), (9, 5), DraftShape.chain(1)).scores[0]
    assert (math.exp(one), math.exp(two)) == pytest.approx(
        (1 / (1 + HALF_DOUBT_MATCH), 2 / (2 + HALF_DOUBT_MATCH))
    )
    searched = (9, 5, 1, 9, 5, 2, 9, 5, 2, 7)
    told = proposal(searched, (9, 5), DraftShape(1, 4, 4))
    assert told.tokens == (2, 1)
    shares = [math.exp(score) * (2 + HALF_DOUBT_MATCH) / 2 for score in told.scores]
    assert shares == pytest.approx([2 / 3, 1 / 3])
    assert proposal(searched, (8, 5), DraftShape(1, 4, 4), 2) == Proposal(2), "one token is too few"


def test_what_the_longest_match_says_leads_whatever_shorter_ones_say() -> None:
    text = (1, 2, 3, 4, 5, 9, 3, 4, 6, 9, 3, 4, 6, 9, 1, 2, 3, 4)
    assert in_itself(text, DraftShape.chain(3)).tokens[:2] == (5, 9)
    assert set(in_itself(text, DraftShape(1, 3, 6)).tokens) == {5, 6}


def test_a_copy_goes_on_behind_a_token_that_was_replaced_by_another() -> None:
    """No copy continues after a token that ended the text there, nor after too few tokens."""
    copied = tuple(range(10, 10 + MIN_MATCH_BEFORE_CHANGE))
    suffix = (*copied, 5)
    assert proposal((*copied, 6, 7, 8), suffix, DraftShape.chain(2)).tokens == (7, 8)
    assert proposal((*copied, BOUNDARY, 7, 8), suffix, DraftShape.chain(2)) == Proposal(len(suffix))
    assert proposal((*copied[1:], 6, 7, 8), suffix, DraftShape.chain(2)) == Proposal(len(suffix))
    assert proposal(
        (*copied, 6, 7, 3, 4, 5, 9), (*copied, 3, 4, 5), DraftShape(1, 4, 4)
    ).tokens == (9,)


def test_a_text_in_circles_is_proposed_to_go_on_in_circles() -> None:
    assert in_itself((1, 2, 3, 1, 2, 3, 1), DraftShape.chain(7)) == Draft.chain(
        (2, 3, 1) * 2 + (2,)
    )


@given(st.lists(texts, max_size=8))
def test_a_growing_text_is_all_that_it_was_told(parts: list[Tokens]) -> None:
    growing, told = GrowingTokens.of(()), list[int]()
    for part in parts:
        growing.extend(part)
        told += part
        assert growing.array.tolist() == told


@given(searched_texts, texts, shapes, st.floats(0.01, 1.2), st.floats(-3, 0.7), st.integers(1, 3))
def test_no_node_is_proposed_that_is_not_worth_its_price(
    searched: Tokens, suffix: Tokens, shape: DraftShape, price: float, trust: float, least: int
) -> None:
    arrays = np.array(searched, np.int32), np.array(suffix, np.int32)
    told = suffix_proposal(*arrays, shape, len(suffix), least, price, trust)
    chances = [1.0]
    for parent, score in zip(told.parents, told.scores, strict=True):
        chances.append(chances[parent] * math.exp(min(0.0, score + trust)))
    assert all(chance > price - 1e-9 for chance in chances[1:])
    if least_match(price / math.exp(trust)) <= least:  # shorter matches do not count at this price
        whole = suffix_proposal(*arrays, shape, len(suffix), least, 0.0, trust)
        assert told.tokens == whole.tokens[: len(told.tokens)], "the same come first"


@given(searched_texts, texts, shapes)
def test_no_match_is_left_out_that_could_be_worth_its_price(
    searched: Tokens, suffix: Tokens, shape: DraftShape
) -> None:
    told = proposal(searched, suffix, shape)
    for parent, score in zip(told.parents, told.scores, strict=True):
        if not parent:
            longest = max(matching(searched, end, suffix) for end in range(1, len(searched)))
            replaced = max(
                matching(searched, end - 1, suffix[:-1]) for end in range(1, len(searched))
            )
            assert least_match(math.exp(score) - 1e-9) <= max(longest, replaced // 4)
