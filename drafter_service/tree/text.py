"""One session's text and the tree ahead of it: what of both is cached, and what may be fed next.

Does to the session's memory what `growth` decides; when to feed what is decided by `growing` and
`whole`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import torch

from drafter_service.tree.growth import Growth
from drafter_service.tree.guesses import Guesser
from drafter_service.tree.node import Node
from drafter_service.tree.unread import Unread
from engine.cache.session import Session
from engine.cache.sessions import Sessions
from engine.forward.segment import Segment
from engine.sampling.drawing import Adjustment
from protos.errors import Busy, SessionMiss
from protos.streams import Drafting

Report: TypeAlias = tuple[int, tuple[int, ...]]
"""Of a fact: from where on the text has which tokens."""


def news(inbox: deque[Report], length: int) -> list[int]:
    """What the facts that have arrived say of the text behind its first `length` tokens; raises
    SessionMiss if something between them is missing.
    """
    tokens: list[int] = []
    while inbox:
        start, said = inbox.popleft()
        known = length + len(tokens)
        if start > known:
            raise SessionMiss(f"the text is known up to token {known}, not to {start}")
        tokens += said[known - start :]
    return tokens


class Text(Unread):
    """A session at work that holds its text, or will when what is pending was fed; then there is a
    tree. `tokens` of the vocabulary are the tokenizer's.
    """

    def __init__(
        self,
        sessions: Sessions,
        session: Session,
        opening: Drafting,
        growth: Growth,
        tokens: int,
    ) -> None:
        super().__init__(sessions, session, opening.context)
        sampling = opening.sampling
        self.growth = growth
        self._tokens = tokens
        self._adjusted = sampling.historic or bool(sampling.logit_bias)
        self._adjustment = Adjustment(sampling, session.tokens)

    def hear(self, inbox: deque[Report], anew: bool = False) -> int:
        """Take in the facts that have arrived; the tree goes on from where the text is now, or
        begins `anew`. Returns how many tokens were new; raises SessionMiss.
        """
        tokens = news(inbox, self.session.length + len(self.pending))
        if not tokens:
            return 0
        count, order = self.growth.follow(tokens, anew)
        self._sessions.advance(self.session, tokens[:count], order)
        self.pending += tokens[count:]
        self._adjustment.extend(tokens)
        return len(tokens)

    def keep(self, tokens: Sequence[int], places: Sequence[int]) -> int:
        """Hold a path of the tree too, as if it were committed; returns the length held."""
        self._sessions.advance(self.session, tokens, places)
        return self.session.length

    def fit(self, nodes: list[Node]) -> list[Node]:
        """Those of some nodes to be fed that there is memory for."""
        base = self.session.length + self.growth.fed
        with suppress(Busy):
            self._sessions.reserve(self.session, base + len(nodes))
        return nodes[: max(0, self.session.room.capacity - base)]

    def segment(self, nodes: Sequence[Node]) -> Segment:
        """Nodes of the tree whose parents are fed."""
        return Segment(
            room=self.session.room,
            context=self.session.length,
            tokens=tuple(node.token for node in nodes),
            parents=self.growth.parents(nodes),
            wanted=len(nodes),
        )

    def expand(self, nodes: Sequence[Node], logits: torch.Tensor, guess: Guesser) -> None:
        """Guess what follows the root, or nodes that were fed, from their logits [nodes, vocab]."""
        rows = logits[:, : self._tokens]
        if self._adjusted:
            rows = self._adjustment.rows(rows, [self.growth.path(node) for node in nodes])
        self.growth.expand(nodes, guess(rows, [node.position for node in nodes]))
