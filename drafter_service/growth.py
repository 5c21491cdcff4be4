"""Growing a token tree best-first under a node budget, a level at a time.

Pure: scores come in, nodes to look behind come out. A node's score is the predicted log-probability
that it stands, the sum over its path; children never score above their parent. So a node that is
not among the best `nodes` known has no descendant in the final tree, and looking only behind those
that are gives the exact best-first tree (2402.12374, 2406.16858).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from protos.types import Distribution, Draft, DraftShape

ROOT = -1


class Child(NamedTuple):
    """A token that may follow, the log-probability that it stands if what precedes it does, and its
    probability by the draft model.
    """

    token: int
    gain: float
    probability: float = 1.0


@dataclass(slots=True)
class Node:
    """A guessed token; `place` is where its keys lie behind the context once it was fed."""

    token: int
    parent: int
    depth: int
    score: float
    sure: bool
    place: int | None = None


@dataclass(slots=True)
class Growth:
    """A growing tree. `room` bounds the nodes that may be fed."""

    shape: DraftShape
    room: int
    nodes: list[Node] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)
    drawn: dict[int, Distribution] = field(default_factory=dict)
    bar: float = field(init=False)  # what a node must score above to be among the best
    mass: float = 1.0  # nodes expected to stand among those that were looked behind last

    def __post_init__(self) -> None:
        self.bar = math.log(self.shape.worth) if self.shape.worth else -math.inf

    def sprout(
        self, parent: int, children: Sequence[Child], drawn: Distribution | None = None
    ) -> None:
        """Add children, likeliest first, and what they were drawn from."""
        if drawn:
            self.drawn[parent] = drawn
        depth, score = 0, 0.0
        if parent != ROOT:
            depth, score = self.nodes[parent].depth + 1, self.nodes[parent].score
        if depth == self.shape.levels:
            return
        trust = math.log(self.shape.trust)
        for token, gain, probability in children[: self.shape.branches]:
            own = score + min(gain + trust, 0.0)
            if own > self.bar:
                sure = probability >= self.shape.confidence
                self.nodes.append(Node(token, parent, depth, own, sure))

    def frontier(self) -> list[int]:
        """The nodes to look behind next: unfed, above the last level, sure, among the best; none
        when the tree is done, or when what may follow them is not worth a look.
        """
        best = self._best()
        if best and len(best) == self.shape.nodes:
            self.bar = self.nodes[best[-1]].score
        chosen = [
            node
            for node in best
            if self.nodes[node].place is None
            and self.nodes[node].sure
            and self.nodes[node].depth + 1 < self.shape.levels
        ]
        chosen = sorted(chosen)[: self.room - len(self.fed)]
        mass = self._expected(chosen)
        share = min(1.0, mass / self.mass)  # as much may be lost again
        scores = (math.exp(self.nodes[node].score) for node in chosen)
        promise = sum(max(0.0, score * share - self.shape.worth) for score in scores)
        if promise < self.shape.level_worth:
            return []
        self.mass = mass or self.mass
        for node in chosen:
            self.nodes[node].place = len(self.fed)
            self.fed.append(node)
        return chosen

    @property
    def expected(self) -> float:
        """How many nodes of the tree should stand."""
        return self._expected(self._best())

    def path(self, node: int) -> list[int]:
        """The tokens from the root down to a node."""
        tokens = []
        while node != ROOT:
            tokens.append(self.nodes[node].token)
            node = self.nodes[node].parent
        return tokens[::-1]

    def fed_parents(self) -> tuple[int, ...]:
        """The fed nodes as a tree, in the order in which they were fed."""
        return tuple(self._place(self.nodes[node].parent) for node in self.fed)

    def finish(self) -> tuple[Draft, tuple[int, ...]]:
        """The tree with the likeliest child first, and the places of its leading nodes as far as
        they were fed.
        """
        kept = set(self._best())
        order: list[int] = []
        stack = self._kept_children(ROOT, kept)
        while stack:
            node = stack.pop()
            order.append(node)
            stack += self._kept_children(node, kept)
        index = {node: position for position, node in enumerate(order)} | {ROOT: -1}
        draft = Draft(
            tuple(self.nodes[node].token for node in order),
            tuple(index[self.nodes[node].parent] for node in order),
            self._distributions(order),
        )
        trunk: list[int] = []
        for position, node in enumerate(order):
            place = self.nodes[node].place
            if place is None or draft.parents[position] != position - 1:
                break
            trunk.append(place)
        return draft, tuple(trunk)

    def _distributions(self, order: Sequence[int]) -> tuple[Distribution, ...]:
        """What the children of the root, then of each node in order, were drawn from."""
        if not self.drawn:
            return ()
        parents = {self.nodes[node].parent for node in order}
        return tuple(
            self.drawn[node] if node in parents else Distribution() for node in (ROOT, *order)
        )

    def _expected(self, nodes: Sequence[int]) -> float:
        return sum(math.exp(self.nodes[node].score) for node in nodes)

    def _best(self) -> list[int]:
        """The best nodes within the budget; among equals the older one, so that no child precedes
        its parent.
        """
        return heapq.nsmallest(
            self.shape.nodes,
            range(len(self.nodes)),
            key=lambda node: (-self.nodes[node].score, node),
        )

    def _kept_children(self, parent: int, kept: set[int]) -> list[int]:
        """Kept children, likeliest last."""
        found = [node for node in kept if self.nodes[node].parent == parent]
        return sorted(found, key=lambda node: (self.nodes[node].score, -node))

    def _place(self, node: int) -> int:
        if node == ROOT:
            return ROOT
        place = self.nodes[node].place
        assert place is not None, "a child is fed after its parent"
        return place
