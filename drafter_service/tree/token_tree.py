"""A token tree that grows ahead of a text and is re-rooted as the text goes on.

Pure: children and committed tokens come in; nodes to feed, guesses, and where the keys of nodes
must go come out. A node's score is the predicted log-probability that it is accepted, the sum over
its path; children never score above their parent. So a node that is not among the best `nodes`
known has no descendant among them, and feeding only those that are gives the exact best-first tree
(2402.12374, 2406.16858). Scores are absolute: a new root changes nothing but what is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from tandem.drafter_service.tree.node import DraftNode, Expansion
from tandem.drafter_service.tree.worth import LEAST, FeedThreshold, Worth
from tandem.protos.streams import Guess
from tandem.protos.types import MAX_LEVELS, MAX_NODES, Distribution, DraftShape, Schedule

ALL_PAY = FeedThreshold()
FED_PER_NODE = 4  # nodes fed ahead of the text, at most, for one of the window


class TokenTree:
    """A growing tree after a text of `length` tokens; the draft model's context is `limit`
    tokens.

    `floor` is the log-probability below which a node is neither fed nor sent. `source` goes into
    guesses. With `worth`, children that can never be worth being fed are not kept, but for the
    likeliest one, and `worth` learns from the likeliest child of each token of the text: its
    chance, and whether it was what followed.
    """

    def __init__(
        self,
        shape: DraftShape,
        length: int,
        limit: int,
        source: int = 0,
        worth: Worth | None = None,
    ) -> None:
        self.shape = shape
        self.limit = limit
        self.root = DraftNode(-1, None, length, place=-1)
        self.floor = self._least = math.log(LEAST) if worth else -math.inf
        self._source, self._worth = source, worth
        self._live: list[DraftNode] = []  # best first; among equals the older one
        self._fed: list[DraftNode] = []  # by place
        self._sent = 0

    @property
    def fed(self) -> int:
        """How many nodes are fed."""
        return len(self._fed)

    @property
    def full(self) -> bool:
        """Whether nothing can follow within the draft model's context."""
        return self.root.position >= self.limit

    def expand(self, nodes: Sequence[DraftNode], expansions: Sequence[Expansion]) -> None:
        """Add the children of nodes."""
        for node, expansion in zip(nodes, expansions, strict=True):
            node.drawn = expansion.drawn
            if node.position == self._deepest:
                continue
            for token, gain, probability in expansion.children[: self.shape.branches]:
                if gain > self._least or not node.children:
                    gain = min(gain, 0.0)
                    sure = probability >= self.shape.confidence
                    score, position = node.score + gain, node.position + 1
                    child = DraftNode(token, node, position, score, gain, sure)
                    node.children[token] = child
                    self._live.append(child)
        self._live.sort(key=attrgetter("score"), reverse=True)  # stable: no child before its parent

    def window(self) -> list[DraftNode]:
        """The best nodes, best first: those that may be fed and sent."""
        deepest, floor = self._deepest, self.root.score + self.floor
        within = (n for n in self._live if n.position <= deepest and n.score > floor)
        return list(islice(within, self.shape.nodes))

    def frontier(
        self, window: Iterable[DraftNode], threshold: FeedThreshold = ALL_PAY
    ) -> list[DraftNode]:
        """Those of the window to look after, best first: unfed, above the last level, sure, and
        worth it.
        """
        deepest, left = self._deepest, FED_PER_NODE * self.shape.nodes - self.fed
        base, start = self.root.score, self.root.position
        unfed = (n for n in window if n.place is None and n.sure and n.position < deepest)
        worth = (n for n in unfed if threshold.pays(n.score - base, n.position - start))
        return list(islice(worth, max(0, left)))

    def feed(self, nodes: Iterable[DraftNode]) -> None:
        """These were fed, in this order."""
        for place, node in enumerate(nodes, self.fed):
            node.place = place
            self._fed.append(node)

    def parents(self, nodes: Sequence[DraftNode]) -> tuple[int, ...]:
        """All fed nodes and then these as a tree, in the order of their places."""
        above = (node.parent for node in (*self._fed, *nodes))
        return tuple(a.place for a in above if a is not None and a.place is not None)

    def path(self, node: DraftNode) -> list[int]:
        """The tokens from the root down to a node."""
        tokens: list[int] = []
        while node is not self.root:
            tokens.append(node.token)
            assert node.parent is not None
            node = node.parent
        return tokens[::-1]

    def follow(self, tokens: Sequence[int], restart: bool = False) -> tuple[int, list[int]]:
        """The text went on with these tokens: how many leading ones are fed nodes, and the places
        of their keys and then of those of all nodes that are still possible, in their new order.

        If they are not all fed, or with `restart`, it is empty, and its root has to
        be fed.
        """
        if self.root.children:
            self.shape = adapted(self.shape, self._observe(tokens))
        node, path = self.root, list[int]()
        for token in tokens[: len(tokens) - restart]:
            child = node.children.get(token)
            if child is None or child.place is None:
                break
            node = child
            path.append(child.place)
        if restart or len(path) < len(tokens):
            node = DraftNode(-1, None, self.root.position + len(tokens), place=-1)
        self._set_root(node)
        places = [n.place for n in self._fed if n.place is not None]
        for place, fed in enumerate(self._fed):
            fed.place = place
        return len(path), path + places

    def unsent(self, window: Iterable[DraftNode], level: int = 0) -> Guess | None:
        """What of the window was not sent yet, if anything; nodes above a level only as the parents
        of others.
        """
        nodes: set[DraftNode] = set()
        for node in (n for n in window if n.position >= self.root.position + level):
            while not (node.number or node is self.root or node in nodes):
                nodes.add(node)
                assert node.parent is not None
                node = node.parent
        return self._guess(sorted(nodes, key=attrgetter("position"))) if nodes else None

    def whole(self) -> tuple[Guess, list[int]]:
        """The best tree in one guess, the likeliest child first; and the places of its leading
        nodes as far as they were fed.
        """
        kept, nodes = set(self.window()), list[DraftNode]()
        stack = [self.root]
        while stack:
            node = stack.pop()
            nodes.append(node)
            stack += [child for child in reversed(node.children.values()) if child in kept]
        root, *order = nodes
        trunk: list[int] = []
        for above, node in zip(nodes, order, strict=False):
            if node.parent is not above or node.place is None:
                break
            trunk.append(node.place)
        guess = self._guess(order)
        if order and root.drawn:
            parents = {node.parent for node in order}
            drawn = (node.drawn if node in parents else None for node in nodes)
            guess = replace(guess, distributions=tuple(d or Distribution() for d in drawn))
        return guess, trunk

    @property
    def _deepest(self) -> int:
        """The position of the last level."""
        return min(self.root.position + self.shape.levels, self.limit)

    def _guess(self, nodes: Sequence[DraftNode]) -> Guess:
        """These, numbered; their parents are among them, or were sent."""
        first = self._sent + 1
        self._sent += len(nodes)
        for number, node in enumerate(nodes, first):
            node.number = number
        return Guess(
            self.root.position,
            tuple(node.token for node in nodes),
            tuple(node.parent.number for node in nodes if node.parent),
            tuple(node.gain for node in nodes),
            first,
            self._source,
        )

    def _set_root(self, root: DraftNode) -> None:
        """Forget all nodes that are not after the new root, and how it came about."""
        possible, live = set[DraftNode | None]({root}), list[DraftNode]()
        for node in self._live:
            if node.parent in possible:
                possible.add(node)
                live.append(node)
            else:
                node.parent = None  # or what is forgotten would be garbage in cycles
        self._live = live
        self._fed = [node for node in self._fed if node in possible and node is not root]
        self.root, root.parent, root.number, root.place = root, None, 0, -1

    def _observe(self, tokens: Iterable[int]) -> bool:
        """Whether the tree was right about these as far as it reached."""
        node = self.root
        for token in tokens:
            if not node.children:
                break
            likeliest = next(iter(node.children.values()))
            if self._worth:
                self._worth.observe_guess(math.exp(likeliest.gain), likeliest.token == token)
            if token not in node.children:
                return False
            node = node.children[token]
        return True


def adapted(shape: DraftShape, accepted: bool) -> DraftShape:
    """By a schedule that asks for it, two levels more after a guess that was accepted to its end,
    else one less, and as many nodes to each as at first (transformers' assisted generation,
    `num_assistant_tokens_schedule`).
    """
    if shape.schedule is not Schedule.HEURISTIC or not shape.levels:
        return shape
    width = max(1, shape.nodes) / shape.levels
    levels = shape.levels + 2 if accepted else shape.levels - 1
    levels = min(max(1, levels), MAX_LEVELS, int(MAX_NODES / width))
    return replace(shape, levels=levels, nodes=max(1, round(levels * width)))
