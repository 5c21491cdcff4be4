"""Decoding jobs without a service: a test drives their port by hand, one opening and one answer at
a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import torch

from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.step_input import StepInput
from tandem.protos.streams import Commit, Decoding, Proposal
from tandem.protos.types import Context, Draft, SamplingParams
from tandem.protos.wire.drafting import proposal_of
from tandem.verifier_service.decoding import DecodeJob
from tandem.verifier_service.sources import Sources


@dataclass
class Mailbox:
    """A port with both ends in the test."""

    inbox: deque[Proposal] = field(default_factory=deque)
    said: list[Commit] = field(default_factory=list)
    paused: bool = False

    def emit(self, commit: Commit) -> None:
        """Send a commit."""
        self.said.append(commit)


def decoding(
    sessions: Sessions, opening: Decoding, stream: Any = None, sources: Sources | None = None
) -> DecodeJob:
    """Return the job of an opening."""
    sources = sources or Sources.of_all()
    return DecodeJob(sessions, opening, stream or Mailbox(), sources, lambda: 0.0)


def verify(
    sessions: Sessions, context: Context, draft: Draft, params: SamplingParams
) -> Generator[StepInput, torch.Tensor, Commit]:
    """Verify one draft in lockstep; return the commit."""
    until = context.length + len(draft) + 1
    opening = Decoding(context, params, until, lockstep=True, once=True)
    stream = Mailbox(deque([proposal_of(draft, context.length)]))
    yield from decoding(sessions, opening, stream).run()
    return stream.said[0]
