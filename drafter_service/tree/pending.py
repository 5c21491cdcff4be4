"""Feeds committed tokens that a session's cache lacks, in pieces, and lets a job wait until more
tokens are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from tandem.engine.cache.session import Session
from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.forward.step_input import FixedInput, StepInput
from tandem.engine.schedule.batch import SHORT_PREFIX
from tandem.protos import tree
from tandem.protos.types import Context

ReadTokens: TypeAlias = Callable[[Sequence[int]], tuple[int, ...]]
"""A function that returns, for each token of a text, the token that the draft model is fed."""


@dataclass(frozen=True, slots=True)
class WaitingInput(FixedInput):
    """A step input that waits until `ready` returns a segment. It has no optional rows."""

    ready: Callable[[], Segment | None]


class PendingTokens:
    """The committed tokens that are not in the session's cache yet (`pending`). While tokens are
    pending, nothing can be proposed after the text.
    """

    def __init__(
        self, sessions: Sessions, session: Session, context: Context, read: ReadTokens = tuple
    ) -> None:
        self.session = session
        self.pending: list[int] = []
        self._sessions = sessions
        self._context = context
        self._read = read

    def next(self) -> Segment:
        """Return a segment of as many pending tokens as may be fed in one step. Raises Busy if
        memory is short.
        """
        tokens = self.pending[:SHORT_PREFIX]
        self._sessions.reserve(self.session, self.session.length + len(tokens))
        return chain_segment(self.session, self._read(tokens))

    def mark_fed(self) -> bool:
        """Note that the tokens that `next` returned were fed. Returns whether no pending tokens are
        left.
        """
        tokens = self.pending[:SHORT_PREFIX]
        self._sessions.advance(self.session, tokens, range(len(tokens)))
        del self.pending[:SHORT_PREFIX]
        return not self.pending

    def feed(self, step_input: StepInput) -> Generator[StepInput, torch.Tensor, torch.Tensor]:
        """Have the model thread feed a step input, and return its logits; raises Internal."""
        return self._sessions.feed(self._context, step_input)


def chain_segment(session: Session, tokens: Sequence[int]) -> Segment:
    """Return a segment that feeds tokens to a session and requests the logits of the last token."""
    return Segment(session.table, session.length, tuple(tokens), tree.chain(len(tokens)), 1)
