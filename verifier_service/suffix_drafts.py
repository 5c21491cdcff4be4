"""Proposals without a model: tokens that followed the text's newest tokens when these occurred
earlier.

The module is pure: it depends on no session, clock or randomness. Like SuffixDecoding (arXiv
2411.04975), the module follows the longest suffixes that occurred earlier, and estimates chances
from counts. Earlier occurrences are found by comparing tokens instead of searching a suffix tree.
Therefore nothing has to be built when a prompt arrives, old tokens are dropped by slicing, and each
token takes 4 bytes.
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

from tandem.protos.streams import LONGEST_MATCH, Proposal
from tandem.protos.types import DraftShape

Tokens = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.intp]
MAX_MATCHES = 32  # maximum number of matches whose following tokens are used
SHORT_MATCH = 4  # matches of up to this many tokens are searched for in the whole text
MAX_LONG_MATCHES = 4096  # only this many of the newest matches are extended to longer matches
MAX_COMPARED_MATCHES = 256  # the length is measured only for this many of the newest matches
# minimum number of tokens that must match before a token that may have replaced another token
MIN_MATCH_BEFORE_CHANGE = 8
HALF_DOUBT_MATCH = 1.5  # the length, in tokens, of matches that are wrong half of the time
MIN_CHANCE = 0.01  # minimum chance of a proposed node
NO_MATCHES: Numbers = np.empty(0, np.intp)
BOUNDARY = -1  # separates two texts, in the place of a token


@dataclass(slots=True)
class GrowingTokens:
    """A growing token sequence, stored in an array with spare capacity."""

    _room: Tokens
    _length: int

    @classmethod
    def of(cls, tokens: Sequence[int]) -> GrowingTokens:
        """Return a growing sequence that begins with these tokens."""
        return cls(np.array(tokens, np.int32), len(tokens))

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the sequence."""
        length = self._length + len(tokens)
        if length > len(self._room):
            self._room = np.concatenate((self.array, np.empty(length, np.int32)))
        self._room[self._length : length] = tokens
        self._length = length

    @property
    def array(self) -> Tokens:
        """All tokens of the sequence, int32 [length]."""
        return self._room[: self._length]


class Following(NamedTuple):
    """A token that followed some of the matches, its chance of following again, and the ranks of
    these matches.
    """

    token: int
    chance: float
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class Followers:
    """The tokens that followed each match, [matches][levels], and the length of each match
    (`matched`). The longest match comes first.
    """

    tokens: list[list[int]]
    matched: list[int]

    def after(self, ranks: Sequence[int], depth: int) -> list[Following]:
        """Return the tokens that may follow the first `depth` tokens after the matches in `ranks`,
        the likeliest first. These first `depth` tokens are equal for all matches in `ranks`. A
        token's chance is its frequency after the longest of these matches. The more doubtful the
        longest matches are, the more shorter matches count.
        """
        if len(ranks) == 1:  # a shortcut for the usual case below the first levels
            (rank,) = ranks
            token = self.tokens[rank][depth]
            chance = 1 - doubt_after(self.matched[rank] + depth)
            return [] if token == BOUNDARY else [Following(token, chance, [rank])]
        counts, chances = Counter[int](), defaultdict[int, float](float)
        found: dict[int, list[int]] = {}
        left, total = 1.0, 0
        for matched, equal in groupby(ranks, self.matched.__getitem__):
            for rank in equal:
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
    """Return the doubt about matches of this length: the probability, from 0 to 1, that a token
    which followed such a match does not follow again.
    """
    return HALF_DOUBT_MATCH / (matched + HALF_DOUBT_MATCH)


def least_match(chance: float) -> int:
    """Return the minimum number of matching tokens that gives a token this chance, if all matches
    agree on the token. The result is above LONGEST_MATCH if no match is long enough.
    """
    left, matched = 1.0, 0
    while 1 - left < chance and matched <= LONGEST_MATCH:
        matched += 1
        left *= doubt_after(matched)
    return matched


def find_matches(searched: Tokens, suffix: Tokens, least: int) -> tuple[Numbers, Numbers]:
    """Find all matches in `searched`. A match is an occurrence of at least `least` of the last
    tokens of `suffix` that is followed by another token. Returns the length of each match, and the
    position after each match. The longest matches come first; among matches of equal length, the
    latest match comes first.
    """
    longest = min(LONGEST_MATCH, len(suffix), len(searched) - 1)
    if longest < least:
        return NO_MATCHES, NO_MATCHES
    ends = np.flatnonzero(searched[:-1] == suffix[-1]) + 1
    for size in range(2, longest + 1):
        if not len(ends) or (size > least and len(ends) <= MAX_COMPARED_MATCHES):
            break
        ends = ends[ends >= size]
        longer = ends[searched[ends - size] == suffix[-size]]
        if size > least and not len(longer):
            break
        ends = longer[-MAX_LONG_MATCHES:] if size > SHORT_MATCH else longer
    if not len(ends):
        return NO_MATCHES, NO_MATCHES
    ends = ends[-MAX_COMPARED_MATCHES:]
    back = np.arange(1, longest + 1)
    at = ends[:, None] - back  # [places, longest]
    differs = (at < 0) | (searched[at] != suffix[-back])
    matched = np.where(differs.any(1), differs.argmax(1), longest)
    order = np.lexsort((-ends, -matched))[:MAX_MATCHES]
    return matched[order], ends[order]


def find_matches_to_follow(searched: Tokens, suffix: Tokens, least: int) -> tuple[Numbers, Numbers]:
    """Find matches as `find_matches` does. If few tokens match, add matches of the tokens before
    the newest token, because the newest token may have replaced another one, for example in a
    changed name. Such a match counts as a quarter of its length.
    """
    matched, ends = find_matches(searched, suffix, least)
    if len(ends) and matched[0] >= SHORT_MATCH:
        return matched, ends
    before, replaced = find_matches(searched[:-1], suffix[:-1], MIN_MATCH_BEFORE_CHANGE)
    if not len(replaced):
        return matched, ends
    known = searched[replaced] != BOUNDARY
    matched = np.concatenate((matched, before[known] // 4))
    ends = np.concatenate((ends, replaced[known] + 1))
    order = np.argsort(-matched, kind="stable")[:MAX_MATCHES]
    return matched[order], ends[order]


def suffix_proposal(
    searched: Tokens,
    suffix: Tokens,
    shape: DraftShape,
    behind: int,
    least: int = 1,
    price: float = 0.0,
    trust: float = 0.0,
) -> Proposal:
    """Propose the likeliest nodes after `suffix`, based on the tokens that followed matches of at
    least `least` tokens in `searched`. `trust` is the logarithm of the factor by which each chance
    is corrected. Nodes whose chance is below the `price` of a row are left out, because they would
    get no row.
    """
    if (needed := least_match(price / math.exp(trust))) > LONGEST_MATCH:
        return Proposal(behind)
    matched, ends = find_matches_to_follow(searched, suffix, max(least, needed))
    if not len(ends):
        return Proposal(behind)
    # at the end of `searched`, copying continues from the position after the match
    steps = np.arange(shape.levels) % (len(searched) - ends)[:, None]
    followers = Followers(searched[ends[:, None] + steps].tolist(), matched.tolist())
    max_cost = -math.log(max(MIN_CHANCE, price))
    tokens, parents, scores = list[int](), list[int](), list[float]()
    # nodes by cost, best first: cost, tie-breaker, index of the parent, depth, and the token
    heap: list[tuple[float, int, int, int, Following]] = []
    cost, pushed, depth, ranks = 0.0, 0, 0, list(range(len(ends)))
    while len(tokens) < shape.nodes:
        if depth < shape.levels:
            for each in followers.after(ranks, depth)[: shape.branches]:
                pushed += 1
                child_cost = cost - min(0.0, math.log(each.chance) + trust)
                if child_cost <= max_cost:
                    heappush(heap, (child_cost, pushed, len(tokens), depth + 1, each))
        if not heap:
            break
        cost, _, parent, depth, node = heappop(heap)
        tokens.append(node.token)
        parents.append(parent)
        scores.append(math.log(node.chance))
        ranks = node.ranks
    return Proposal(behind, tuple(tokens), tuple(parents), tuple(scores))
