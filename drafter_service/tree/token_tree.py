"""A token tree that grows ahead of a session's text and is re-rooted when tokens are committed.

The module is pure: it takes in children and committed tokens, and returns nodes to feed, proposals,
and new slots for the keys of nodes. A node's score is the predicted log-probability that the node
is accepted: a sum over its path, so children never score above their parent. A node that is not
among the best nodes therefore has no descendant among them, and feeding only the best nodes gives
the exact best-first tree (arXiv 2402.12374, 2406.16858). Re-rooting does not change the scores. A
node's chance of acceptance is computed from the difference between its score and the root's score.
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
# maximum number of nodes fed ahead of the text, as a multiple of the number of nodes in a draft
FED_PER_NODE = 4


class TokenTree:
    """A growing tree that follows a text of `length` tokens. The draft model's context has `limit`
    tokens.

    `floor` is the log-probability below which a node is neither fed nor sent. `source` is copied
    into every proposal. If `worth` is given, children that can never be worth feeding are dropped,
    except for the likeliest child. For each committed token, `worth` learns the chance of the
    likeliest child, and whether that child was the committed token.
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
        self._live: list[DraftNode] = []  # best first; among equal scores, oldest first
        self._fed: list[DraftNode] = []  # fed nodes, ordered by slot
        self._sent = 0

    @property
    def fed(self) -> int:
        """The number of fed nodes."""
        return len(self._fed)

    @property
    def full(self) -> bool:
        """Whether the text fills the draft model's context."""
        return self.root.position >= self.limit

    def expand(self, nodes: Sequence[DraftNode], expansions: Sequence[Expansion]) -> None:
        """Add the proposed children of nodes."""
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
        """Return the nodes of `window` to feed next, best first. Each of them was not fed yet,
        reaches the required confidence, is above the deepest level, and is worth its cost.
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
        """Return the slot of each node's parent: first for all fed nodes, ordered by slot, and then
        for `nodes`.
        """
        above = (node.parent for node in (*self._fed, *nodes))
        return tuple(a.slot for a in above if a is not None and a.slot is not None)

    def path(self, node: DraftNode) -> list[int]:
        """Return the tokens on the path from the root, exclusively, down to a node."""
        tokens: list[int] = []
        while node is not self.root:
            tokens.append(node.token)
            assert node.parent is not None
            node = node.parent
        return tokens[::-1]

    def follow(self, tokens: Sequence[int], restart: bool = False) -> tuple[int, list[int]]:
        """Re-root the tree after these tokens were committed. Returns how many of the leading
        tokens have a fed node, and a list of cache slots: first the slots of these nodes, and then
        the slots of all other fed nodes that remain in the tree.

        If a committed token has no fed node, or if `restart`, the tree becomes empty. The caller
        must then feed the new root.
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
        """Return a proposal of the nodes of `window` that were not sent yet, or None if there are
        none. A node less than `level` levels below the root is sent only if a descendant is sent.
        """
        nodes: set[DraftNode] = set()
        for node in (n for n in window if n.position >= self.root.position + level):
            while not (node.number or node is self.root or node in nodes):
                nodes.add(node)
                assert node.parent is not None
                node = node.parent
        return self._proposal(sorted(nodes, key=attrgetter("position"))) if nodes else None

    def whole_draft(self) -> tuple[Proposal, list[int]]:
        """Return the best tree as one proposal. Also return the cache slots of the fed nodes at the
        start of the path that leads from each node to its first child. The likeliest child of each
        node comes first.
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
        """The position of the deepest level that the tree may have."""
        return min(self.root.position + self.shape.levels, self.limit)

    def _proposal(self, nodes: Sequence[DraftNode]) -> Proposal:
        """Number the nodes and return them as a proposal. The parent of each node must be among the
        nodes or must have been sent earlier.
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
        """Make a node the root: drop its ancestors, and all nodes that do not descend from it."""
        possible, live = set[DraftNode | None]({root}), list[DraftNode]()
        for node in self._live:
            if node.parent in possible:
                possible.add(node)
                live.append(node)
            else:
                # break the reference cycles of dropped nodes, so that their memory is freed at once
                node.parent = None
        self._live = live
        self._fed = [node for node in self._fed if node in possible and node is not root]
        self.root, root.parent, root.number, root.slot = root, None, 0, -1

    def _observe(self, tokens: Iterable[int]) -> bool:
        """Compare the tree with the tokens that were committed, and learn from the result. Returns
        whether the tokens follow a path of the tree. Tokens after the end of that path are ignored.
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
    """Return the draft shape of the next proposal. The heuristic schedule adds two levels after a
    proposal that was accepted completely, and removes one level otherwise. The ratio of nodes to
    levels stays the same. The schedule is `num_assistant_tokens_schedule` of transformers' assisted
    generation.
    """
    if shape.schedule is not Schedule.HEURISTIC or not shape.levels:
        return shape
    width = max(1, shape.nodes) / shape.levels
    levels = shape.levels + 2 if accepted else shape.levels - 1
    levels = min(max(1, levels), MAX_LEVELS, int(MAX_NODES / width))
    return replace(shape, levels=levels, nodes=max(1, round(levels * width)))
