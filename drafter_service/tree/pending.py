"""Committed tokens that a session does not hold yet, fed in pieces, and the step input of a job
that waits for more of them.
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
"""A function from tokens of a text to the tokens that the draft model is fed, one for each."""


@dataclass(frozen=True, slots=True)
class WaitingInput(FixedInput):
    """A step input that waits until `ready` returns a segment, and has no rows to add."""

    ready: Callable[[], Segment | None]


class PendingTokens:
    """A session's `pending` tokens. While there are pending tokens, nothing can be proposed after
    the text.
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
        """Return the pending tokens, or as many as are fed at once; raises Busy."""
        tokens = self.pending[:SHORT_PREFIX]
        self._sessions.reserve(self.session, self.session.length + len(tokens))
        return chain_segment(self.session, self._read(tokens))

    def mark_fed(self) -> bool:
        """Note that the tokens of `next` were fed. Returns whether no tokens are pending any
        more.
        """
        tokens = self.pending[:SHORT_PREFIX]
        self._sessions.advance(self.session, tokens, range(len(tokens)))
        del self.pending[:SHORT_PREFIX]
        return not self.pending

    def feed(self, step_input: StepInput) -> Generator[StepInput, torch.Tensor, torch.Tensor]:
        """Have a step input fed and return its logits; raises Internal."""
        return self._sessions.feed(self._context, step_input)


def chain_segment(session: Session, tokens: Sequence[int]) -> Segment:
    """Return a segment of tokens that follow those of a session, with logits for the last token."""
    return Segment(session.table, session.length, tuple(tokens), tree.chain(len(tokens)), 1)
