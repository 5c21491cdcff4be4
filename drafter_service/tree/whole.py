"""Drafts made as a whole: from scratch behind the newest fact, level by level to the end, each sent
in one guess.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial

import torch

from drafter_service.tree.guesses import Guesser
from drafter_service.tree.text import Report, Text
from drafter_service.tree.waiting import Waiting
from engine.forward.offer import Offer
from engine.forward.segment import Segment
from engine.schedule.port import Port
from protos.streams import Guess


def drafts(
    text: Text,
    guess: Callable[[int], Guesser],
    port: Port[Report, Guess],
    logits: torch.Tensor,
    once: bool,
) -> Generator[Offer, torch.Tensor, None]:
    """Sends one draft, or one behind every fact. `logits` are the root's, [1, vocab]; `guess` is
    told the length of the text.

    After the only one, the session holds the text and the draft's leading nodes as far as they were
    fed.
    """
    growth = text.growth
    while True:
        nodes = [growth.root]
        while nodes:
            text.expand(nodes, logits, guess(growth.root.position))
            nodes = text.fit(growth.frontier(growth.window()))
            if nodes:
                logits = yield from text.feed(text.segment(nodes))
                growth.feed(nodes)
        draft, trunk = growth.whole()
        if once:
            length = text.keep(draft.tokens[: len(trunk)], trunk)
            port.emit(replace(draft, epoch=text.session.epoch, cached_len=length))
            return
        port.emit(draft)
        known = False
        while not known:
            logits = yield from text.feed(Waiting(partial(_newest, text, port)))
            known = text.read()


def _newest(text: Text, port: Port[Report, Guess]) -> Segment | None:
    """The newest committed tokens. Those behind which a draft does not fit are answered with an
    empty one.
    """
    growth, changed = text.growth, text.hear(port.inbox, anew=True)
    if growth.full and changed:
        port.emit(growth.whole()[0])
    return text.next() if text.pending and not growth.full else None
