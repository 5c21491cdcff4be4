"""The proposed nodes of one session that may still be accepted, and how likely each of them is to
be accepted.

The module is pure. Proposals are never trusted: late, repeated or impossible nodes are dropped on
arrival, and the chance of acceptance that a source claims for a node is corrected by how often the
source was right (`Trust`). If several sources claim chances for the children of a node, these
chances are scaled so that they add up to 1 at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import NamedTuple

from tandem.protos.streams import Proposal
from tandem.protos.types import MAX_NODES, Draft
from tandem.verifier_service.proposed_node import CERTAIN, Claim, ProposedNode, Source

REMEMBERED = 256  # number of newest committed tokens that late proposals may follow
# maximum number of numbered nodes, and maximum number of nodes after the root
MOST = 16 * MAX_NODES


class PickedNode(NamedTuple):
    """A proposed node that may get a row in the next step. `above` is its parent, and `parent` is
    the parent's index among the picked nodes (-1 for the root). `chance` is the probability that
    the node is accepted.
    """

    node: ProposedNode
    above: ProposedNode
    parent: int
    chance: float


class Proposals:
    """The proposed nodes that may follow a text of `length` tokens. The text may grow to `until`
    tokens. A node for the last token of the text is dropped, because verifying it would save no
    step.
    """

    def __init__(self, length: int, until: int) -> None:
        self.root = ProposedNode(-1, length)
        self.late = 0  # number of nodes that arrived after the text had passed their position
        self.arrived = 0  # number of nodes that arrived in time
        self._until = until
        self._live = 0  # upper bound for the number of nodes after the root
        self._text = {length: self.root}  # the newest committed tokens, by position
        self._numbered: dict[int, ProposedNode] = {}
        self._source = 0  # `source` of the proposals whose nodes are in `_numbered`
        self._picked: list[PickedNode] = []
        # for each node of the newest draft, the chances that the sources claim
        self._claims: Sequence[Mapping[Source, float]] = ()

    @property
    def sources(self) -> set[Source]:
        """The sources that have proposed the next token."""
        return {source for child in (self.root.children or {}).values() for source in child.claims}

    def add(self, proposal: Proposal, trust: float = 0.0, source: Source = Source.DRAFTER) -> None:
        """Add the nodes of a proposal that may still be accepted. The parent of a drafter's node
        may be a node of an earlier proposal.
        """
        if source is not Source.DRAFTER:
            self._hang(proposal, trust, source, {})
            return
        if proposal.source != self._source:
            self._numbered, self._source = {}, proposal.source
        if len(self._numbered) > MOST:
            self._forget()
        self._hang(proposal, trust, source, self._numbered)

    def _hang(
        self, proposal: Proposal, trust: float, source: Source, numbered: dict[int, ProposedNode]
    ) -> None:
        if self._live > MOST:
            return
        here, until = self.root.position, self._until
        anchor, number = self._text.get(proposal.behind), proposal.first - 1
        for token, parent, gain in zip(
            proposal.tokens, proposal.parents, proposal.scores, strict=True
        ):
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
                node = children[token] = ProposedNode(token, above.position + 1)
                self.arrived += 1
                self._live += 1
            if source not in node.claims:
                claim = node.claims[source] = Claim(math.exp(gain), min(0.0, gain + trust))
                above.claimed[source] = above.claimed.get(source, 0.0) + claim.chance
            numbered[number] = node

    def prune(self, following: Callable[[Sequence[int], Sequence[int]], Collection[int]]) -> None:
        """Drop the nodes that the grammar does not allow. `following(path, tokens)` returns those
        of `tokens` that may follow a path from the root.
        """
        stack: list[tuple[ProposedNode, list[int]]] = [(self.root, [])]
        while stack:
            node, path = stack.pop()
            children = node.children or {}
            new = [token for token, child in children.items() if not child.checked]
            possible = following(path, new) if new else ()
            for token in new:
                children[token].checked = token in possible
                if token not in possible:
                    for source, claim in children.pop(token).claims.items():
                        node.claimed[source] -= claim.chance
            node.children = children or None
            stack += ((child, [*path, token]) for token, child in children.items())

    def force(self, tokens: Sequence[int]) -> None:
        """Make these tokens the only nodes after the root, because the grammar allows no other
        tokens.
        """
        node = self.root
        for token in tokens:
            if node.position + 1 >= self._until:
                return
            known = (node.children or {}).get(token)
            if known is None:
                known = ProposedNode(token, node.position + 1)
                self.arrived, self._live = self.arrived + 1, self._live + 1
            known.claims, known.checked = {Source.GRAMMAR: CERTAIN}, True
            node.children, node.claimed, node = {token: known}, {Source.GRAMMAR: 0.0}, known

    def advance(self, tokens: Sequence[int]) -> None:
        """Move the root along the tokens that were committed. All nodes that do not descend from
        the new root are dropped.
        """
        for token in tokens:
            children, self.root.children = self.root.children or {}, None
            node = children.get(token) or ProposedNode(token, self.root.position + 1)
            self.root = self._text[node.position] = node
            self._text.pop(node.position - REMEMBERED, None)
        if self._live > MOST // 2:
            self._forget()

    def chances(self) -> Iterator[float]:
        """Yield the chance of each node to be accepted, the likeliest nodes first. No node comes
        before its parent.
        """
        picked: list[PickedNode] = []
        self._picked = picked
        heap: list[tuple[float, int, ProposedNode, ProposedNode, int]] = []
        node, place, cost, count = self.root, -1, 0.0, 0
        while True:
            for child, gain in node.shares() if node.children else ():
                count += 1
                heappush(heap, (cost - gain, count, child, node, place))
            if not heap:
                return
            cost, _, node, above, parent = heappop(heap)
            chance, place = math.exp(-cost), len(picked)
            picked.append(PickedNode(node, above, parent, chance))
            yield chance

    def expected_gain(self, promise: float, price: float) -> tuple[float, float]:
        """Return the expected number of accepted nodes, and the expected gain of another level.
        Nodes that get no row at this `price` are ignored. The gain is approximated by the
        probability of the likeliest leaf. If there are no nodes, the gain is `promise`.
        """
        expected, promise = 0.0, 0.0 if self.root.children else promise
        for chance in takewhile(lambda it: it >= price, islice(self.chances(), MAX_NODES)):
            expected += chance
            if not promise and not self._picked[-1].node.children:
                promise = chance
        return expected, promise

    def draft(self, rows: int) -> tuple[Draft, float]:
        """Return the first `rows` nodes of the latest call of `chances` as a tree, and the expected
        number of accepted nodes. The likeliest child of each node comes first.
        """
        picked = self._picked[:rows]
        children: list[list[int]] = [[] for _ in range(len(picked) + 1)]
        for place, each in enumerate(picked):
            children[each.parent + 1].append(place)
        order, index, stack = list[int](), {-1: -1}, children[0][::-1]
        while stack:
            place = stack.pop()
            index[place] = len(order)
            order.append(place)
            stack += children[place + 1][::-1]
        tokens = tuple(picked[place].node.token for place in order)
        parents = tuple(index[picked[place].parent] for place in order)
        self._claims = [picked[place].above.claims_of(picked[place].node) for place in order]
        return Draft(tokens, parents), sum(each.chance for each in picked)

    def claimed(
        self, draft: Draft, accepted: Sequence[int], source: Source = Source.DRAFTER
    ) -> float:
        """Return the sum of the chances that a source claimed for the children of the root and of
        the `accepted` nodes, in the newest draft. The chances of the children of a node add up to 1
        at most.
        """
        reached = {-1, *accepted}
        pairs = zip(draft.parents, self._claims, strict=True)
        return sum(claims.get(source, 0.0) for parent, claims in pairs if parent in reached)

    def right(self, accepted: Sequence[int], source: Source = Source.DRAFTER) -> int:
        """Count the `accepted` nodes of the newest draft for which a source claimed a chance."""
        return sum(self._claims[node].get(source, 0.0) > 0 for node in accepted)

    def found(self, accepted: Sequence[int]) -> tuple[int, int]:
        """Count the nodes of the newest draft that no drafter has sent, and how many of them were
        `accepted`.
        """
        found = [Source.DRAFTER not in claims for claims in self._claims]
        return sum(found), sum(found[node] for node in accepted)

    def _late(self, above: ProposedNode, token: int) -> ProposedNode | None:
        """Count a late node. Returns the committed node at its position, or None if another token
        was committed there.
        """
        self.late += 1
        if self._text.get(above.position) is not above:
            return None
        known = self._text[above.position + 1]
        return known if known.token == token else None

    def _forget(self) -> None:
        """Forget the numbers of nodes that can no longer be accepted, and recount the nodes after
        the root.
        """
        alive = {id(node) for node in self._text.values()}
        self._live, stack = -len(alive), [self.root]
        while stack:
            children = (stack.pop().children or {}).values()
            alive.update(map(id, children))
            stack += children
        self._live += len(alive)
        kept = {number: node for number, node in self._numbered.items() if id(node) in alive}
        self._numbered = kept if len(kept) <= MOST // 2 else {}
