"""A tree that grows ahead of its text without end: facts re-root it, and what becomes one of its
best nodes is sent.

An offer to the model thread; what may be fed is known to `text`, what is best to `growth`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from drafter_service.growth import Node
from drafter_service.guesses import Guesser
from drafter_service.text import Report, Text
from engine.plan import Segment
from engine.streams import Port
from protos.streams import Guess

LEAST = 0.01  # a node's chance, below which it is neither fed nor sent: one in a hundred such rows
# would save the verifier a step
SLACK = 0.125  # of the verifier's price: when a guess arrives, some of the tokens before it may
# have been accepted, and it is likelier then


@dataclass(slots=True)
class Price:
    """The chance below which the verifier gives a guessed node no row now; 0 = unknown."""

    chance: float = 0.0

    @property
    def floor(self) -> float:
        """The log-probability below which a node is neither fed nor sent."""
        return math.log(min(1.0, max(LEAST, self.chance * SLACK)))


class Growing:
    """One opening's tree (`engine.offer.Offer`), whose root was fed. `first` are the root's logits,
    [1, vocab].
    """

    def __init__(
        self,
        text: Text,
        guess: Guesser,
        port: Port[Report, Guess],
        price: Price,
        first: torch.Tensor,
    ) -> None:
        self._text, self._guess, self._port, self._price = text, guess, port, price
        self._frontier: Sequence[Node] = ()
        self._asked: Sequence[Node] = ()  # what is to be fed; none if it is committed tokens
        self._expand([text.growth.root], first)

    def ready(self) -> Segment | None:
        """The newest committed tokens, or the likeliest node that was not fed."""
        self._update()
        if self._port.paused or self._text.growth.full:
            return None
        if self._text.pending:
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
        growth, floor = self._text.growth, self._price.floor
        changed = self._text.hear(self._port.inbox) or floor != growth.floor or changed
        if changed:
            growth.floor = floor
            window = growth.window()
            if guess := growth.fresh(window):
                self._port.emit(guess)
            self._frontier = self._text.fit(growth.frontier(window))
