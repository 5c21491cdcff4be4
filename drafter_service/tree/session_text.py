"""One session's text and the draft tree that follows it. The module keeps track of which part of
the text and the tree is cached, and of what may be fed next.

This module makes the changes of the session's cache that `token_tree` decides on. `growing` and
`whole` decide which tokens are fed and when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeAlias

import torch

from tandem.drafter_service.tree.expansion import Expander
from tandem.drafter_service.tree.node import DraftNode
from tandem.drafter_service.tree.pending import PendingTokens
from tandem.drafter_service.tree.token_tree import TokenTree
from tandem.drafter_service.tree.vocabulary import Vocabulary
from tandem.engine.cache.session import Session
from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.sampling.matcher import GrammarMatcher
from tandem.engine.sampling.sampler import LogitsProcessor
from tandem.protos.errors import InvalidRequest, SessionMiss
from tandem.protos.streams import Drafting

CommitTokens: TypeAlias = tuple[int, tuple[int, ...]]
"""The position of a commit's first token in the text, and the commit's tokens."""


def new_tokens(inbox: deque[CommitTokens], length: int) -> list[int]:
    """Remove all commits from the inbox, and return the committed tokens that follow the first
    `length` tokens of the text. Raises SessionMiss if tokens before a commit are missing.
    """
    tokens: list[int] = []
    while inbox:
        start, new = inbox.popleft()
        known = length + len(tokens)
        if start > known:
            raise SessionMiss(f"only {known} tokens are known, but a commit begins after {start}")
        tokens += new[known - start :]
    return tokens


class SessionText(PendingTokens):
    """A session and the draft tree that follows its text. The tree grows only while no committed
    tokens are pending.
    """

    def __init__(
        self,
        sessions: Sessions,
        session: Session,
        opening: Drafting,
        tree: TokenTree,
        vocabulary: Vocabulary,
        grammar: Future[GrammarMatcher] | None = None,
    ) -> None:
        """`grammar` is a future that returns the opening's compiled grammar. Once the grammar is
        compiled, only tokens that it allows are proposed.
        """
        super().__init__(sessions, session, opening.context, vocabulary.read)
        sampling = opening.sampling
        self.tree = tree
        self._vocabulary = vocabulary
        self._adjusted = sampling.adjusting
        self._adjustment = LogitsProcessor(sampling, session.tokens)
        self._grammar = grammar
        self._before_grammar: list[int] = list(session.tokens[opening.context.length :])

    def take_commits(self, inbox: deque[CommitTokens], restart: bool = False) -> int:
        """Process the commits that have arrived. The tree is re-rooted at the new end of the text.
        If `restart`, an empty tree replaces the tree. Returns the number of new tokens. Raises
        SessionMiss if tokens before a commit are missing.
        """
        tokens = new_tokens(inbox, self.session.length + len(self.pending))
        if not tokens:
            return 0
        count, order = self.tree.follow(tokens, restart)
        self._sessions.advance(self.session, tokens[:count], order)
        self.pending += tokens[count:]
        self._adjustment.extend(tokens)
        if self._grammar:
            self._before_grammar += tokens
        return len(tokens)

    def keep(self, tokens: Sequence[int], slots: Sequence[int]) -> int:
        """Keep the tokens of a tree path in the session's cache, although they are not committed.
        Returns how many tokens the cache then holds.
        """
        self._sessions.advance(self.session, tokens, slots, proposed=len(tokens))
        return self.session.length

    def fit(self, nodes: list[DraftNode]) -> list[DraftNode]:
        """Return as many of the leading `nodes` as there is memory for."""
        base = self.session.length + self.tree.fed
        self._sessions.try_reserve(self.session, base + len(nodes))
        return nodes[: max(0, self.session.table.capacity - base)]

    def segment(self, nodes: Sequence[DraftNode]) -> Segment:
        """Return a segment of tree nodes whose parents have been fed."""
        return Segment(
            table=self.session.table,
            context=self.session.length,
            tokens=tuple(node.token for node in nodes),
            parents=self.tree.parents(nodes),
            num_logits=len(nodes),
        )

    def expand(self, nodes: Sequence[DraftNode], logits: torch.Tensor, propose: Expander) -> None:
        """Add proposed children to `nodes`, given the logits [nodes, vocab] after each node. Each
        node is the root or was fed.
        """
        rows = self._vocabulary.proposable(logits)
        self._constrain()
        if self._adjusted:
            rows = self._adjustment.rows(rows, [self.tree.path(node) for node in nodes])
        self.tree.expand(nodes, propose(rows, [node.position for node in nodes]))

    def _constrain(self) -> None:
        """If the grammar is compiled, propose only tokens that it allows from now on. A grammar
        that cannot be used is ignored here, because the verifier refuses such a request.
        """
        if self._grammar and self._grammar.done():
            with suppress(InvalidRequest):
                matcher = self._grammar.result()
                matcher.extend(self._before_grammar)
                self._adjustment.matcher = matcher
            self._grammar = None
