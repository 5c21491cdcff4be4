"""Proposals without a model: the tokens that followed a text's newest tokens at earlier places.

The module is pure: it knows no session, clock or randomness. Like SuffixDecoding (arXiv
2411.04975), the module follows the longest suffixes that occurred before, and computes chances from
counts. The places are found by comparing tokens instead of searching a suffix tree, so nothing is
built when a prompt arrives, old tokens are dropped by a slice, and a token takes 4 bytes.
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
MAX_MATCHES = 32  # most matches that are followed
SHORT_MATCH = 4  # matches of up to this many tokens are searched for everywhere
MAX_LONG_MATCHES = 4096  # longer matches are searched for only at this many newest places
MAX_COMPARED_MATCHES = 256  # the length of a match is measured only at this many newest places
# least number of matching tokens before a token that may have replaced another token
MIN_MATCH_BEFORE_CHANGE = 8
HALF_DOUBT_MATCH = 1.5  # length of a match, in tokens, that is wrong as often as right
MIN_CHANCE = 0.01  # least chance of a proposed node
NO_MATCHES: Numbers = np.empty(0, np.intp)
BOUNDARY = -1  # stands between two texts in the place of a token


@dataclass(slots=True)
class GrowingTokens:
    """A text that grows, as an array with room behind it."""

    _room: Tokens
    _length: int

    @classmethod
    def of(cls, tokens: Sequence[int]) -> GrowingTokens:
        """Return a text that begins with these tokens."""
        return cls(np.array(tokens, np.int32), len(tokens))

    def extend(self, tokens: Sequence[int]) -> None:
        """Add these tokens to the text."""
        length = self._length + len(tokens)
        if length > len(self._room):
            self._room = np.concatenate((self.array, np.empty(length, np.int32)))
        self._room[self._length : length] = tokens
        self._length = length

    @property
    def array(self) -> Tokens:
        """The whole text: int32 [length]."""
        return self._room[: self._length]


class Following(NamedTuple):
    """A token that followed at some places, its chance, and the ranks of these places."""

    token: int
    chance: float
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class Followers:
    """The tokens that followed at each of several places, [places][levels], and how many tokens
    before each place `matched`, the longest match first.
    """

    tokens: list[list[int]]
    matched: list[int]

    def after(self, ranks: Sequence[int], depth: int) -> list[Following]:
        """Return the tokens that may follow after `depth` tokens, the likeliest first. These
        `depth` tokens are the same at all places in `ranks`. A token is as likely as it was
        frequent at the places with the longest match. As far as the longest match leaves doubt,
        places with shorter matches count too.
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
    """Return the doubt, from 0 to 1: how likely it is that a token which followed a match of this
    length will not follow again.
    """
    return HALF_DOUBT_MATCH / (matched + HALF_DOUBT_MATCH)


def least_match(chance: float) -> int:
    """Return the least number of tokens that must match for this chance, if all matches agree on
    the next token. The result is above LONGEST_MATCH if no match suffices.
    """
    left, matched = 1.0, 0
    while 1 - left < chance and matched <= LONGEST_MATCH:
        matched += 1
        left *= doubt_after(matched)
    return matched


def find_matches(searched: Tokens, suffix: Tokens, least: int) -> tuple[Numbers, Numbers]:
    """Find the places in `searched` where the last tokens of `suffix`, at least `least` of them,
    are followed by a further token. Returns how many tokens match at each place, and the position
    after each match. The longest matches come first, and matches of equal length come latest first.
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
    """Find places as `find_matches` does. If few tokens match, add the places where the tokens
    before the newest one match, because the newest token may have replaced another one, like a
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
    """Propose the likeliest nodes after `suffix`, from what followed in `searched` at the places
    where at least `least` tokens match. `trust`, a logarithm, corrects each chance. Nodes whose
    chance is below the `price` of a row are left out, because they would get no row.
    """
    if (needed := least_match(price / math.exp(trust))) > LONGEST_MATCH:
        return Proposal(behind)
    matched, ends = find_matches_to_follow(searched, suffix, max(least, needed))
    if not len(ends):
        return Proposal(behind)
    # at the end of the tokens, the copy goes on from the place after the match
    steps = np.arange(shape.levels) % (len(searched) - ends)[:, None]
    followers = Followers(searched[ends[:, None] + steps].tolist(), matched.tolist())
    max_cost = -math.log(max(MIN_CHANCE, price))
    tokens, parents, scores = list[int](), list[int](), list[float]()
    # best node first: its cost, a number that decides between equal costs, its parent, its depth
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
