"""A token tree that keeps growing ahead of its session's text. Commits re-root the tree, and a node
is sent once it is among the best nodes.

The model thread takes its input for a step from the tree. `session_text` determines which nodes
may be fed, and `token_tree` determines which nodes are best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from tandem.drafter_service.tree.expansion import Expander
from tandem.drafter_service.tree.node import DraftNode
from tandem.drafter_service.tree.session_text import CommitTokens, SessionText
from tandem.drafter_service.tree.worth import Worth
from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import SHORT_PREFIX
from tandem.engine.schedule.job_stream import JobStream
from tandem.protos.streams import Proposal
from tandem.protos.types import MAX_LEVELS


class GrowingTree:
    """The growing tree of one opening, which is an `engine.forward.step_input.StepInput`. The root
    is already fed, and `root_logits` [1, vocab] are the logits after it.
    """

    def __init__(
        self,
        text: SessionText,
        propose: Expander,
        stream: JobStream[CommitTokens, Proposal],
        worth: Worth,
        clock: Callable[[], float],
        root_logits: torch.Tensor,
    ) -> None:
        self._text = text
        self._propose = propose
        self._stream = stream
        self._worth = worth
        self._clock = clock
        self._frontier: Sequence[DraftNode] = ()
        # nodes being fed; empty while committed tokens are fed
        self._feeding: Sequence[DraftNode] = ()
        self._held_back = False  # whether nodes were not sent because the stream is paused
        self._expand([text.tree.root], root_logits)

    def ready(self) -> Segment | None:
        """Return the next segment to feed, or None if there is nothing to feed now. Committed
        tokens are fed first, once there are many of them or drafting is worth its cost. If no
        committed tokens are pending, the likeliest node that was not fed yet comes next.
        """
        self._update()
        if self._stream.paused or self._text.tree.full:
            return None
        if pending := self._text.pending:
            if len(pending) < SHORT_PREFIX and not self._worth.threshold().pays(0.0, 0):
                return None
            self._feeding = ()
            return self._text.next()
        return self.segment(0) if self._frontier else None

    def chances(self) -> Iterator[float]:
        """Return the acceptance chances of all nodes of the frontier except the first node. The
        parents of these nodes have all been fed.
        """
        root = self._text.tree.root.score
        return (math.exp(node.score - root) for node in self._frontier[1:])

    def segment(self, rows: int) -> Segment:
        """Return a segment that feeds the first node of the frontier and up to `rows` further
        nodes.
        """
        self._feeding = self._frontier[: rows + 1]
        return self._text.segment(self._feeding)

    def wait_seconds(self, now: float, step: float) -> float:
        """Return 0, because a growing tree need not wait before a step."""
        return 0.0

    def take(self, logits: torch.Tensor) -> None:
        """Process the logits [rows, vocab] of the tokens that were fed."""
        if self._feeding:
            self._text.tree.feed(self._feeding)
            self._expand(self._feeding, logits)
        elif self._text.mark_fed():
            self._expand([self._text.tree.root], logits)

    def _expand(self, nodes: Sequence[DraftNode], logits: torch.Tensor) -> None:
        self._text.expand(nodes, logits, self._propose)
        self._update(changed=True)

    def _update(self, changed: bool = False) -> None:
        """Process the commits that have arrived, and send the nodes that are now among the best
        ones. Nothing is sent while the caller reads too slowly (`stream.paused`).
        """
        tree, floor = self._text.tree, self._worth.floor
        changed |= self._held_back and not self._stream.paused
        if tokens := self._text.take_commits(self._stream.inbox):
            self._worth.text_grew(tokens, self._clock())
        if tokens or floor != tree.floor or changed:
            tree.floor = floor
            window, threshold = tree.window(), self._worth.threshold()
            self._frontier = self._text.fit(tree.frontier(window, threshold))
            pays = self._frontier or threshold.pays(0.0, 0)
            self._held_back = self._stream.paused
            if not pays or self._held_back:
                return
            if proposal := tree.unsent(window, int(min(threshold.lead, MAX_LEVELS))):
                self._stream.emit(proposal)
