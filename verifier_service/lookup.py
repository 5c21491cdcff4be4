"""Guessing without a model: what followed the newest tokens of a text where they occurred before.

Pure: knows no session, clock or randomness.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from tandem.protos.streams import LONGEST_MATCH, Guess
from tandem.protos.types import DraftShape

CHANCES = {LONGEST_MATCH: 0.9, 4: 0.75, 2: 0.6, 1: 0.4}  # of the next token, by how many match
LATER = 0.5  # and for each alternative that was found before it
REACH = 3  # tokens that are copied for each that matched: one alone shows little
LOOKED_AT = 32  # earlier occurrences for one guess, so that its time is bounded in any text
PIECE = 1024  # tokens that are indexed for one guess, for the same reason


class NgramIndex:
    """Where the n-grams of one size ended in a growing text. A position counts the tokens up to
    there, so 0 is no end at all.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._newest: dict[bytes, int] = {}  # by n-gram, its last end
        self._earlier = array("I")  # by end - 1, where the n-gram that ends there ended before

    def grow(self, tokens: array[int], count: int) -> bool:
        """Index so many more of `tokens`, of which the text so far was a prefix; whether that was
        all of them.
        """
        indexed = len(self._earlier)
        for end in range(indexed + 1, min(len(tokens), indexed + count) + 1):
            if end < self.size:
                self._earlier.append(0)
                continue
            gram = tokens[end - self.size : end].tobytes()
            self._earlier.append(self._newest.get(gram, 0))
            self._newest[gram] = end
        return len(self._earlier) == len(tokens)

    def ends(self) -> Iterator[int]:
        """Where the newest n-gram ended before, latest first."""
        end = len(self._earlier)
        while end and (end := self._earlier[end - 1]):
            yield end


class NgramLookup:
    """A growing text and where its n-grams occurred, in `known` tokens too, as if the text began
    behind them.
    """

    def __init__(self, shape: DraftShape, piece: int = PIECE, known: Sequence[int] = ()) -> None:
        self._shape, self._piece = shape, piece
        self._tokens, self._start = array("I", known), len(known)
        self._index = [NgramIndex(size) for size in CHANCES]

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on."""
        self._tokens.extend(tokens)

    def guess(self) -> Guess:
        """The likeliest continuation, then others as far as the shape allows, joined where they
        begin with the same tokens. A long text gives none until enough calls have indexed it.
        """
        behind = len(self._tokens) - self._start
        indexed = [occurrences.grow(self._tokens, self._piece) for occurrences in self._index]
        if not all(indexed):
            return Guess(behind)
        shape, tokens, parents, scores = self._shape, list[int](), list[int](), list[float]()
        children: list[dict[int, int]] = [{}]  # by number: token -> number
        for rank, (end, matched) in enumerate(islice(self._matches(), LOOKED_AT)):
            if len(tokens) >= shape.nodes:
                break
            node, score = 0, math.log(CHANCES[matched] * LATER**rank)
            for token in self._followers(end, min(shape.levels, REACH * matched)):
                siblings = children[node]
                if token not in siblings:
                    if len(tokens) >= shape.nodes or len(siblings) >= shape.branches:
                        break
                    tokens.append(token)
                    parents.append(node)
                    scores.append(score)
                    children.append({})
                    siblings[token] = len(tokens)
                node, score = siblings[token], math.log(CHANCES[matched])
        return Guess(behind, tuple(tokens), tuple(parents), tuple(scores))

    def _matches(self) -> Iterator[tuple[int, int]]:
        """Where the newest tokens occurred before, and how many: the longest match first, then the
        latest.
        """
        known: set[int] = set()
        for occurrences in self._index:
            for end in occurrences.ends():
                if end not in known:
                    known.add(end)
                    yield end, occurrences.size

    def _followers(self, end: int, count: int) -> Iterator[int]:
        """What followed there; where the text ends, what was copied so far follows."""
        period = len(self._tokens) - end
        return (self._tokens[end + step % period] for step in range(count))
