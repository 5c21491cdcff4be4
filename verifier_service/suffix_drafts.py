"""Guessing without a model: what followed the newest tokens of a text where they occurred before.

Pure: knows no session, clock or randomness. As SuffixDecoding (arXiv 2411.04975) does, it follows
the longest suffixes that recur, and takes counts for chances. The places are found by comparing the
tokens, not in a suffix tree: nothing is built when a prompt arrives, what is old is dropped by a
slice, and a token takes 4 bytes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tandem.protos.streams import LONGEST_MATCH, Guess
from tandem.protos.types import DraftShape

Tokens = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.intp]
PLACES = 32  # that are followed
FEW, RECENT, COMPARED = 4, 4096, 256  # of more than FEW tokens, places that are still looked at
REPLACED = 8  # tokens before a token that may stand for another one
DOUBT = 1.5  # tokens of a match whose place is wrong as often as right
LEAST = 0.01  # chance of a node that is guessed
NOWHERE: Numbers = np.empty(0, np.intp)
BOUNDARY = -1  # behind a text that another follows: no token


@dataclass(slots=True)
class GrowingTokens:
    """A text that grows, as an array with room behind it."""

    _room: Tokens
    _length: int

    @classmethod
    def of(cls, tokens: Sequence[int]) -> GrowingTokens:
        """It begins with these."""
        return cls(np.array(tokens, np.int32), len(tokens))

    def extend(self, tokens: Sequence[int]) -> None:
        """It goes on with these."""
        length = self._length + len(tokens)
        if length > len(self._room):
            self._room = np.concatenate((self.array, np.empty(length, np.int32)))
        self._room[self._length : length] = tokens
        self._length = length

    @property
    def array(self) -> Tokens:
        """All of it: int32 [length]."""
        return self._room[: self._length]


class Following(NamedTuple):
    """A token that followed, its chance, and the places, by their ranks, where it did."""

    token: int
    chance: float
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class Followers:
    """What followed at each of several places, [places][levels], of which so many tokens before
    `matched`, the longest first.
    """

    tokens: list[list[int]]
    matched: list[int]

    def after(self, ranks: Sequence[int], depth: int) -> list[Following]:
        """What may follow `depth` tokens that are the same at the places of these ranks, the
        likeliest first: as often as it did where most tokens match; and as far as such a match is
        no proof, as it did where fewer do too.
        """
        if len(ranks) == 1:  # usual below the first levels, and quick
            (rank,) = ranks
            token = self.tokens[rank][depth]
            chance = 1 - doubt_after(self.matched[rank] + depth)
            return [] if token == BOUNDARY else [Following(token, chance, [rank])]
        counts, chances = Counter[int](), defaultdict[int, float](float)
        found: dict[int, list[int]] = {}
        left, total = 1.0, 0
        for matched, places in groupby(ranks, self.matched.__getitem__):
            for rank in places:
                if (token := self.tokens[rank][depth]) != BOUNDARY:
                    counts[token] += 1
                    total += 1
                    found.setdefault(token, []).append(rank)
            doubt = doubt_after(matched + depth)
            for token, count in counts.items():
                chances[token] += left * (1 - doubt) * count / total
            left *= doubt
        order = sorted(found, key=chances.__getitem__, reverse=True)
        return [Following(token, chances[token], found[token]) for token in order]


def doubt_after(matched: int) -> float:
    """That what followed where so many tokens match will follow."""
    return DOUBT / (matched + DOUBT)


def least_match(chance: float) -> int:
    """How many tokens have to match at least for a chance, even if whatever matches agrees; more
    than ever are compared if there is no such number.
    """
    left, matched = 1.0, 0
    while 1 - left < chance and matched <= LONGEST_MATCH:
        matched += 1
        left *= doubt_after(matched)
    return matched


def places(searched: Tokens, suffix: Tokens, least: int) -> tuple[Numbers, Numbers]:
    """Where in the tokens searched a suffix of at least `least` tokens ended before their last one:
    how many tokens match, and the place behind them; the longest matches first, then the latest.
    """
    longest = min(LONGEST_MATCH, len(suffix), len(searched) - 1)
    if longest < least:
        return NOWHERE, NOWHERE
    ends = np.flatnonzero(searched[:-1] == suffix[-1]) + 1
    for size in range(2, longest + 1):
        if not len(ends) or (size > least and len(ends) <= COMPARED):
            break
        ends = ends[ends >= size]
        longer = ends[searched[ends - size] == suffix[-size]]
        if size > least and not len(longer):
            break
        ends = longer[-RECENT:] if size > FEW else longer
    if not len(ends):
        return NOWHERE, NOWHERE
    ends = ends[-COMPARED:]
    back = np.arange(1, longest + 1)
    at = ends[:, None] - back  # [places, longest]
    differs = (at < 0) | (searched[at] != suffix[-back])
    matched = np.where(differs.any(1), differs.argmax(1), longest)
    order = np.lexsort((-ends, -matched))[:PLACES]
    return matched[order], ends[order]


def places_to_follow(searched: Tokens, suffix: Tokens, least: int) -> tuple[Numbers, Numbers]:
    """The same, and where few tokens match also the places behind those where all tokens but the
    newest do, which may stand for another, as a name that is changed: a quarter of them counts.
    """
    matched, ends = places(searched, suffix, least)
    if len(ends) and matched[0] >= FEW:
        return matched, ends
    before, replaced = places(searched[:-1], suffix[:-1], REPLACED)
    if not len(replaced):
        return matched, ends
    known = searched[replaced] != BOUNDARY
    matched = np.concatenate((matched, before[known] // 4))
    ends = np.concatenate((ends, replaced[known] + 1))
    order = np.argsort(-matched, kind="stable")[:PLACES]
    return matched[order], ends[order]


def suffix_guess(
    searched: Tokens,
    suffix: Tokens,
    shape: DraftShape,
    behind: int,
    least: int = 1,
    price: float = 0.0,
    trust: float = 0.0,
) -> Guess:
    """What may follow a suffix after what did in the tokens searched: the likeliest nodes, if at
    least so many tokens match. One whose chance is below the `price` of a row would get none; what
    is claimed of a node is trusted with so much of it, as a logarithm.
    """
    if (needed := least_match(price / math.exp(trust))) > LONGEST_MATCH:
        return Guess(behind)
    matched, ends = places_to_follow(searched, suffix, max(least, needed))
    if not len(ends):
        return Guess(behind)
    steps = np.arange(shape.levels) % (len(searched) - ends)[:, None]  # what was copied follows
    followers = Followers(searched[ends[:, None] + steps].tolist(), matched.tolist())
    most = -math.log(max(LEAST, price))
    tokens, parents, scores = list[int](), list[int](), list[float]()
    heap: list[tuple[float, int, int, int, Following]] = []
    cost, count, depth, ranks = 0.0, 0, 0, list(range(len(ends)))
    while len(tokens) < shape.nodes:
        if depth < shape.levels:
            for each in followers.after(ranks, depth)[: shape.branches]:
                count, below = count + 1, cost - min(0.0, math.log(each.chance) + trust)
                if below <= most:
                    heappush(heap, (below, count, len(tokens), depth + 1, each))
        if not heap:
            break
        cost, _, parent, depth, node = heappop(heap)
        tokens.append(node.token)
        parents.append(parent)
        scores.append(math.log(node.chance))
        ranks = node.ranks
    return Guess(behind, tuple(tokens), tuple(parents), tuple(scores))
