"""Looking up n-grams: what a slow, obvious search through the text would guess, however it grew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.protos import tree
from tandem.protos.streams import Guess
from tandem.protos.types import Draft, DraftShape
from tandem.protos.wire.drafting import draft_of
from tandem.verifier_service.lookup import CHANCES, LOOKED_AT, REACH, NgramLookup

Tokens = tuple[int, ...]
SIZES = tuple(CHANCES)

texts = st.lists(st.integers(0, 2), min_size=1, max_size=60).map(tuple)
shapes = st.builds(
    DraftShape, levels=st.integers(0, 9), branches=st.integers(1, 4), nodes=st.integers(0, 24)
)


def drafted(text: Tokens, shape: DraftShape) -> Draft:
    """What is guessed behind a text."""
    lookup = NgramLookup(shape)
    lookup.extend(text)
    guess = lookup.guess()
    assert guess.behind == len(text)
    return draft_of(guess)


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


@given(st.lists(texts, min_size=1, max_size=6), shapes)
def test_a_guess_is_what_a_search_through_the_whole_text_finds_however_it_grew(
    parts: list[Tokens], shape: DraftShape
) -> None:
    lookup, text = NgramLookup(shape), ()
    for part in parts:
        lookup.extend(part)
        text += part
        assert paths_of(draft_of(lookup.guess())) == paths(text, shape)


@given(texts, shapes, st.integers(1, 9))
def test_a_long_text_is_indexed_in_pieces_before_anything_is_guessed(
    text: Tokens, shape: DraftShape, piece: int
) -> None:
    """So that no other session waits for it."""
    lookup = NgramLookup(shape, piece)
    lookup.extend(text)
    for _ in range((len(text) - 1) // piece):
        assert lookup.guess() == Guess(len(text))
    assert paths_of(draft_of(lookup.guess())) == paths(text, shape)


@given(texts, shapes)
def test_no_node_is_likelier_than_its_match_and_later_matches_are_less_likely(
    text: Tokens, shape: DraftShape
) -> None:
    lookup = NgramLookup(shape)
    lookup.extend(text)
    guess = lookup.guess()
    assert all(score < 0 for score in guess.scores)
    first = [score for score, parent in zip(guess.scores, guess.parents, strict=True) if not parent]
    assert first == sorted(first, reverse=True)


def test_the_longest_match_leads_then_the_latest_and_others_branch_off() -> None:
    text = (1, 2, 3, 4, 5, 9, 3, 4, 6, 9, 3, 4, 7, 9, 1, 2, 3, 4)
    assert drafted(text, DraftShape(2, 3, 6)) == Draft((5, 9, 7, 9, 6, 9), (-1, 0, -1, 2, -1, 4))
    assert drafted(text, DraftShape.chain(3)) == Draft.chain((5, 9, 3))


@given(texts, texts, shapes)
def test_known_tokens_are_found_as_if_they_had_come_before(
    known: Tokens, text: Tokens, shape: DraftShape
) -> None:
    lookup = NgramLookup(shape, known=known)
    lookup.extend(text)
    guess = lookup.guess()
    assert guess.behind == len(text)
    assert draft_of(guess) == drafted(known + text, shape)


def test_a_short_match_is_trusted_for_few_tokens() -> None:
    text = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
    assert drafted((*text, 0, 1), DraftShape.chain(16)) == Draft.chain(text[1:][:REACH])
    assert drafted((*text, 0, 1, 2), DraftShape.chain(16)) == Draft.chain(text[2:][: 2 * REACH])
