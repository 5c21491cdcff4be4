"""The guessed nodes of one session that are still possible, and how likely each is.

Pure. A guess is never trusted: what is late, repeated or impossible is dropped on arrival, and a
node's chance is what the drafter sent, corrected by how right drafters have been (`Trust`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter

from tandem.protos.streams import Guess
from tandem.protos.types import MAX_NODES, Draft

REMEMBERED = 256  # committed tokens after which a late guess may still arrive
MOST = 16 * MAX_NODES  # nodes that are remembered by number
MOST_TRUST, LEAST_TRUST = 0.7, -6.0
PACE = 0.05  # of what is learned from one step
DRIFT = 0.002  # of what is forgotten in a step


@dataclass(slots=True)
class Trust:
    """What drafters are trusted with. `log` is by how much they misjudge the chance of a token
    whose parent is accepted, as a logarithm: with it, as many are accepted as are expected to be.
    """

    log: float = 0.0
    promise: float = 1.0  # how often the likeliest token after the root is right, if there is one

    def observe(self, expected: float, accepted: int, levels: int) -> None:
        """A step verified guesses of so many levels; one without any shows nothing, and what was
        learned fades.
        """
        self.promise += DRIFT * (1 - self.promise)
        if not levels:
            self.log *= 1 - DRIFT
            return
        slope = 0.5 + expected * (1 + levels) / 2  # about d expected / d log
        step = PACE * (accepted - expected) / slope
        self.log = min(MOST_TRUST, max(LEAST_TRUST, self.log + step))

    def observe_likeliest(self, right: bool) -> None:
        """The likeliest token after the root was right, or not."""
        self.promise += PACE * (right - self.promise)


class GuessNode:
    """A token at a place of the text, `position` tokens with it. Its `score` less that of a node
    above is the log-probability that it is accepted if that one is.
    """

    __slots__ = ("children", "position", "score", "token")

    def __init__(self, token: int, position: int, score: float = 0.0) -> None:
        self.token, self.position, self.score = token, position, score
        self.children: dict[int, GuessNode] | None = None


class Guesses:
    """Nodes after a text of `length` tokens, of at most `until` tokens in all: a node at the
    last place would be of no use.
    """

    def __init__(self, length: int, until: int) -> None:
        self.root = GuessNode(-1, length)
        self.late = 0  # nodes that arrived after the text
        self.arrived = 0  # nodes that arrived in time
        self._until = until
        self._text = {length: self.root}  # the newest committed tokens, by position
        self._numbered: dict[int, GuessNode] = {}
        self._source = 0  # whose numbers these are
        self._picked: list[
            tuple[GuessNode, int, float]
        ] = []  # with its parent's place here, its chance

    def add(self, guess: Guess, trust: float = 0.0) -> None:
        """Take in the nodes of a guess that may still come true."""
        if guess.source != self._source:
            self._numbered, self._source = {}, guess.source
        if len(self._numbered) > MOST:
            self._forget()
        numbered, here, until = self._numbered, self.root.position, self._until
        anchor, number = self._text.get(guess.behind), guess.first - 1
        for token, parent, gain in zip(guess.tokens, guess.parents, guess.scores, strict=True):
            number += 1
            above = numbered.get(parent) if parent else anchor
            if above is None or above.position + 1 >= until:
                continue
            if above.position < here:
                if known := self._late(above, token):
                    numbered[number] = known
                continue
            if (children := above.children) is None:
                children = above.children = {}
            if (node := children.get(token)) is None:
                gain = min(0.0, gain + trust)
                node = children[token] = GuessNode(token, above.position + 1, above.score + gain)
                self.arrived += 1
            numbered[number] = node

    def likeliest(self) -> int | None:
        """The token most likely to be next, if there is a guess."""
        children = (self.root.children or {}).values()
        return max(children, key=attrgetter("score")).token if children else None

    def advance(self, tokens: Sequence[int]) -> None:
        """The text goes on with these: nodes beside them are impossible now."""
        for token in tokens:
            children, self.root.children = self.root.children or {}, None
            node = children.get(token) or GuessNode(token, self.root.position + 1)
            self.root = self._text[node.position] = node
            self._text.pop(node.position - REMEMBERED, None)

    def chances(self) -> Iterator[float]:
        """The chance of each node to be accepted, likeliest first and none before its parent."""
        picked: list[tuple[GuessNode, int, float]] = []
        self._picked = picked
        heap: list[tuple[float, int, GuessNode, int]] = []
        node, place, base, count = self.root, -1, self.root.score, 0
        while True:
            for child in (node.children or {}).values():
                count += 1
                heappush(heap, (-child.score, count, child, place))
            if not heap:
                return
            score, _, node, parent = heappop(heap)
            chance, place = math.exp(-score - base), len(picked)
            picked.append((node, parent, chance))
            yield chance

    def expected_gain(self, promise: float) -> tuple[float, float]:
        """How many nodes should be accepted, and about how many more with another level: the chance
        of the likeliest node after which nothing is known, or what a first level should bring.
        """
        expected, promise = 0.0, 0.0 if self.root.children else promise
        for chance in self.chances():
            expected += chance
            if not promise and not self._picked[-1][0].children:
                promise = chance
        return expected, promise

    def draft(self, rows: int) -> tuple[Draft, float]:
        """The first `rows` nodes of those, as a tree with the likeliest child first, and how many
        of them should be accepted.
        """
        picked = self._picked[:rows]
        children: list[list[int]] = [[] for _ in range(len(picked) + 1)]
        for place, (_, parent, _) in enumerate(picked):
            children[parent + 1].append(place)
        order, index, stack = list[int](), {-1: -1}, children[0][::-1]
        while stack:
            place = stack.pop()
            index[place] = len(order)
            order.append(place)
            stack += children[place + 1][::-1]
        tokens = tuple(picked[place][0].token for place in order)
        parents = tuple(index[picked[place][1]] for place in order)
        return Draft(tokens, parents), sum(chance for _, _, chance in picked)

    def _late(self, above: GuessNode, token: int) -> GuessNode | None:
        """The node of a token where the text is known already; None if that is another token."""
        self.late += 1
        if self._text.get(above.position) is not above:
            return None
        known = self._text[above.position + 1]
        return known if known.token == token else None

    def _forget(self) -> None:
        """Forget the numbers of nodes that are impossible."""
        alive = {id(node) for node in self._text.values()}
        stack = [self.root]
        while stack:
            children = (stack.pop().children or {}).values()
            alive.update(map(id, children))
            stack += children
        kept = {number: node for number, node in self._numbered.items() if id(node) in alive}
        self._numbered = kept if len(kept) <= MOST // 2 else {}
