"""A tree that grows ahead of its text without end: facts re-root it, and what becomes one of its
best nodes is sent.

An offer to the model thread; what may be fed is known to `text`, what is best to `growth`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from drafter_service.tree.guesses import Guesser
from drafter_service.tree.node import Node
from drafter_service.tree.text import Report, Text
from drafter_service.tree.worth import Worth
from engine.forward.segment import Segment
from engine.schedule.batch import SHORT
from engine.schedule.port import Port
from protos.streams import Guess
from protos.types import MAX_LEVELS


class Growing:
    """One opening's tree (`engine.forward.offer.Offer`), whose root was fed. `first` are the root's
    logits, [1, vocab].
    """

    def __init__(
        self,
        text: Text,
        guess: Guesser,
        port: Port[Report, Guess],
        worth: Worth,
        clock: Callable[[], float],
        first: torch.Tensor,
    ) -> None:
        self._text, self._guess, self._port = text, guess, port
        self._worth, self._clock = worth, clock
        self._frontier: Sequence[Node] = ()
        self._asked: Sequence[Node] = ()  # what is to be fed; none if it is committed tokens
        self._expand([text.growth.root], first)

    def ready(self) -> Segment | None:
        """The newest committed tokens, if a tree behind them pays or if they are many, or the
        likeliest node that was not fed.
        """
        self._update()
        if self._port.paused or self._text.growth.full:
            return None
        if pending := self._text.pending:
            if len(pending) < SHORT and not self._worth.outlook().pays(0.0, 0):
                return None
            self._asked = ()
            return self._text.next()
        return self.segment(0) if self._frontier else None

    def chances(self) -> Iterator[float]:
        """Of the nodes of the frontier behind the first: all their parents are fed."""
        root = self._text.growth.root.score
        return (math.exp(node.score - root) for node in self._frontier[1:])

    def segment(self, rows: int) -> Segment:
        """The first of the frontier, and `rows` more."""
        self._asked = self._frontier[: rows + 1]
        return self._text.segment(self._asked)

    def patience(self, now: float, step: float) -> float:
        """It waits for nothing."""
        return 0.0

    def take(self, logits: torch.Tensor) -> None:
        """The logits of what was fed, [rows, vocab]."""
        if self._asked:
            self._text.growth.feed(self._asked)
            self._expand(self._asked, logits)
        elif self._text.read():
            self._expand([self._text.growth.root], logits)

    def _expand(self, nodes: Sequence[Node], logits: torch.Tensor) -> None:
        self._text.expand(nodes, logits, self._guess)
        self._update(changed=True)

    def _update(self, changed: bool = False) -> None:
        """Take in what has arrived, and send what is one of the best nodes now."""
        growth, floor = self._text.growth, self._worth.floor
        if tokens := self._text.hear(self._port.inbox):
            self._worth.heard(tokens, self._clock())
        if tokens or floor != growth.floor or changed:
            growth.floor = floor
            window, outlook = growth.window(), self._worth.outlook()
            self._frontier = self._text.fit(growth.frontier(window, outlook))
            pays = self._frontier or outlook.pays(0.0, 0)
            if pays and (guess := growth.fresh(window, int(min(outlook.lead, MAX_LEVELS)))):
                self._port.emit(guess)
