"""A token tree that grows ahead of a text and is re-rooted as the text goes on.

The module is pure: children and committed tokens come in; nodes to feed, proposals, and new slots
for the keys of nodes come out. A node's score is the predicted log-probability that it is accepted,
the sum over its path; children never score above their parent. So a node that is not among the best
`nodes` known has no descendant among them, and feeding only the best nodes gives the exact
best-first tree (2402.12374, 2406.16858). Scores are absolute: a new root changes only what is
subtracted from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter

from tandem.drafter_service.tree.node import DraftNode, Expansion
from tandem.drafter_service.tree.worth import LEAST, FeedThreshold, Worth
from tandem.protos.streams import Proposal
from tandem.protos.types import MAX_LEVELS, MAX_NODES, Distribution, DraftShape, Schedule

ALL_PAY = FeedThreshold()
FED_PER_NODE = 4  # most nodes fed ahead of the text, for each node of the window


class TokenTree:
    """A growing tree after a text of `length` tokens; the draft model's context is `limit`
    tokens.

    `floor` is the log-probability below which a node is neither fed nor sent. `source` goes into
    proposals. With `worth`, children that can never be worth being fed are not kept, except for the
    likeliest child, and `worth` learns from the likeliest child of each token of the text: the
    child's chance, and whether the text went on with that child.
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
        self.root = DraftNode(-1, None, length, slot=-1)
        self._min_logprob = math.log(LEAST) if worth else -math.inf
        self.floor = self._min_logprob
        self._source = source
        self._worth = worth
        self._live: list[DraftNode] = []  # nodes, best first; of equal nodes the older one first
        self._fed: list[DraftNode] = []  # fed nodes in the order of their slots
        self._sent = 0

    @property
    def fed(self) -> int:
        """The number of fed nodes."""
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
            for token, logprob, probability in expansion.children[: self.shape.branches]:
                if logprob > self._min_logprob or not node.children:
                    logprob = min(logprob, 0.0)
                    confident = probability >= self.shape.confidence
                    score, position = node.score + logprob, node.position + 1
                    child = DraftNode(token, node, position, score, logprob, confident)
                    node.children[token] = child
                    self._live.append(child)
        # the sort is stable, so no child comes before its parent
        self._live.sort(key=attrgetter("score"), reverse=True)

    def window(self) -> list[DraftNode]:
        """Return the nodes that may be fed and sent, best first."""
        deepest, floor = self._deepest, self.root.score + self.floor
        within = (n for n in self._live if n.position <= deepest and n.score > floor)
        return list(islice(within, self.shape.nodes))

    def frontier(
        self, window: Iterable[DraftNode], threshold: FeedThreshold = ALL_PAY
    ) -> list[DraftNode]:
        """Return the window's nodes to feed next, best first: unfed, confident, above the last
        level, and worth their cost.
        """
        deepest, left = self._deepest, FED_PER_NODE * self.shape.nodes - self.fed
        base, start = self.root.score, self.root.position
        unfed = (n for n in window if n.slot is None and n.confident and n.position < deepest)
        worth = (n for n in unfed if threshold.pays(n.score - base, n.position - start))
        return list(islice(worth, max(0, left)))

    def feed(self, nodes: Iterable[DraftNode]) -> None:
        """Note that the nodes were fed, in this order."""
        for slot, node in enumerate(nodes, self.fed):
            node.slot = slot
            self._fed.append(node)

    def parents(self, nodes: Sequence[DraftNode]) -> tuple[int, ...]:
        """Return the tree of all fed nodes and then these, in the order of their slots: the slot
        of each node's parent.
        """
        above = (node.parent for node in (*self._fed, *nodes))
        return tuple(a.slot for a in above if a is not None and a.slot is not None)

    def path(self, node: DraftNode) -> list[int]:
        """Return the tokens from the root, exclusively, down to a node."""
        tokens: list[int] = []
        while node is not self.root:
            tokens.append(node.token)
            assert node.parent is not None
            node = node.parent
        return tokens[::-1]

    def follow(self, tokens: Sequence[int], restart: bool = False) -> tuple[int, list[int]]:
        """Re-root the tree, because the text went on with these tokens. Returns how many leading
        tokens are fed nodes, and the slots of their keys, followed by the slots of all nodes that
        are still possible, in their new order.

        If not all tokens are fed nodes, or with `restart`, the new tree is empty, and its root has
        to be fed.
        """
        if self.root.children:
            self.shape = adapted(self.shape, self._observe(tokens))
        node, path = self.root, list[int]()
        for token in tokens[: len(tokens) - restart]:
            child = node.children.get(token)
            if child is None or child.slot is None:
                break
            node = child
            path.append(child.slot)
        if restart or len(path) < len(tokens):
            node = DraftNode(-1, None, self.root.position + len(tokens), slot=-1)
        self._set_root(node)
        slots = [n.slot for n in self._fed if n.slot is not None]
        for slot, fed in enumerate(self._fed):
            fed.slot = slot
        return len(path), path + slots

    def unsent(self, window: Iterable[DraftNode], level: int = 0) -> Proposal | None:
        """Return a proposal of the nodes of the window that were not sent yet, or None if there are
        none. Nodes above a level are sent only as the parents of others.
        """
        nodes: set[DraftNode] = set()
        for node in (n for n in window if n.position >= self.root.position + level):
            while not (node.number or node is self.root or node in nodes):
                nodes.add(node)
                assert node.parent is not None
                node = node.parent
        return self._proposal(sorted(nodes, key=attrgetter("position"))) if nodes else None

    def whole_draft(self) -> tuple[Proposal, list[int]]:
        """Return the best tree in one proposal, the likeliest child first, and the slots of its
        leading nodes as far as they were fed.
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
            if node.parent is not above or node.slot is None:
                break
            trunk.append(node.slot)
        proposal = self._proposal(order)
        if order and root.drawn:
            parents = {node.parent for node in order}
            drawn = (node.drawn if node in parents else None for node in nodes)
            proposal = replace(proposal, distributions=tuple(d or Distribution() for d in drawn))
        return proposal, trunk

    @property
    def _deepest(self) -> int:
        """The position of the last level."""
        return min(self.root.position + self.shape.levels, self.limit)

    def _proposal(self, nodes: Sequence[DraftNode]) -> Proposal:
        """Number the nodes and return them as a proposal. The nodes' parents must be among them or
        have been sent.
        """
        first = self._sent + 1
        self._sent += len(nodes)
        for number, node in enumerate(nodes, first):
            node.number = number
        return Proposal(
            self.root.position,
            tuple(node.token for node in nodes),
            tuple(node.parent.number for node in nodes if node.parent),
            tuple(node.logprob for node in nodes),
            first,
            self._source,
        )

    def _set_root(self, root: DraftNode) -> None:
        """Forget all nodes that are not after the new root, and the new root's parent."""
        possible, live = set[DraftNode | None]({root}), list[DraftNode]()
        for node in self._live:
            if node.parent in possible:
                possible.add(node)
                live.append(node)
            else:
                # breaks cycles of forgotten nodes, which would otherwise be garbage
                node.parent = None
        self._live = live
        self._fed = [node for node in self._fed if node in possible and node is not root]
        self.root, root.parent, root.number, root.slot = root, None, 0, -1

    def _observe(self, tokens: Iterable[int]) -> bool:
        """Learn from the tokens that the text went on with. Returns whether the tree was right
        about these tokens as far as it reached.
        """
        node = self.root
        for token in tokens:
            if not node.children:
                break
            likeliest = next(iter(node.children.values()))
            if self._worth:
                self._worth.observe_proposal(math.exp(likeliest.logprob), likeliest.token == token)
            if token not in node.children:
                return False
            node = node.children[token]
        return True


def adapted(shape: DraftShape, accepted: bool) -> DraftShape:
    """Return the next proposal's shape. The heuristic schedule adds two levels after a proposal
    that was accepted as a whole, and removes one otherwise. The nodes per level stay the same
    (transformers' assisted generation, `num_assistant_tokens_schedule`).
    """
    if shape.schedule is not Schedule.HEURISTIC or not shape.levels:
        return shape
    width = max(1, shape.nodes) / shape.levels
    levels = shape.levels + 2 if accepted else shape.levels - 1
    levels = min(max(1, levels), MAX_LEVELS, int(MAX_NODES / width))
    return replace(shape, levels=levels, nodes=max(1, round(levels * width)))
