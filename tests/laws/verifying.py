"""Decoding jobs without a service: their port, one question and its answer, driven by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.cache.sessions import Sessions
from engine.forward.offer import Offer
from protos.streams import Decoding, Fact, Guess
from protos.types import Context, Draft, SamplingParams
from protos.wire.drafting import guess_of
from verifier_service.decoding import Decode
from verifier_service.guesses import Trust


@dataclass
class Mailbox:
    """A port whose both ends are here."""

    inbox: deque[Guess] = field(default_factory=deque)
    said: list[Fact] = field(default_factory=list)
    paused: bool = False

    def emit(self, fact: Fact) -> None:
        """A fact leaves."""
        self.said.append(fact)


def decoding(
    sessions: Sessions, opening: Decoding, port: Any = None, trust: Trust | None = None
) -> Decode:
    """The job of an opening."""
    return Decode(sessions, opening, port or Mailbox(), trust or Trust(), lambda: 0.0)


def verify(
    sessions: Sessions, context: Context, draft: Draft, params: SamplingParams
) -> Generator[Offer, torch.Tensor, Fact]:
    """One step in lockstep, which answers with its fact."""
    until = context.length + len(draft) + 1
    opening = Decoding(context, params, until, lockstep=True, once=True)
    port = Mailbox(deque([guess_of(draft, context.length)]))
    yield from decoding(sessions, opening, port).run()
    return port.said[0]
