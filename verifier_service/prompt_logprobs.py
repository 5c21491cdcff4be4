"""Computes the log-probabilities of a prompt's tokens. The prompt is fed chunk by chunk, and the
log-probabilities of a chunk are reported before the next chunk is fed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch

from tandem.engine.cache.session import Session
from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.forward.step_input import FixedInput, StepInput
from tandem.engine.sampling.likeliest import logprobs_of_rows
from tandem.engine.schedule.job_stream import JobStream
from tandem.protos import tree
from tandem.protos.streams import Commit, Decoding, PromptLogprobs, Proposal
from tandem.protos.types import Context

# as many rows as a complete draft; with a vocabulary of 152,000 tokens, their logits take 40 MB
CHUNK_ROWS = 64


def read_prompt(
    sessions: Sessions, session: Session, opening: Decoding, stream: JobStream[Proposal, Commit]
) -> Generator[StepInput, torch.Tensor, int]:
    """Report the log-probabilities of the prompt, if requested, before decoding begins. Returns how
    many tokens of the context were reused from the cache; raises Busy, Internal.
    """
    if not opening.prompt_logprobs:
        return session.length - opening.context.base
    wanted = opening.prompt_logprobs
    return (yield from PromptReading(sessions, session, opening.context, wanted, stream).run())


@dataclass(slots=True, eq=False)
class PromptReading(FixedInput):
    """Feeds a context chunk by chunk, and computes the logits after every token."""

    sessions: Sessions
    session: Session
    context: Context
    wanted: PromptLogprobs
    stream: JobStream[Proposal, Commit]

    def run(self) -> Generator[StepInput, torch.Tensor, int]:
        """Feed the context up to the last token whose log-probability is requested. Cached tokens
        are reused only up to the first token whose log-probability is requested. Returns how many
        cached tokens were reused.
        """
        text, first = self.context.tokens, self.wanted.first
        if self.session.length >= first:
            self.sessions.cut(self.session, first - 1)
        reused = self.session.length
        while (start := self.session.length) < self.wanted.until - 1:
            logits = yield from self.sessions.feed(self.context, self)
            stop = start + len(logits)
            reported = logprobs_of_rows(logits, text[start + 1 : stop + 1], self.wanted.top)
            self.sessions.advance(self.session, text[start:stop], range(len(logits)))
            begin = max(first, start + 1)
            if tokens := text[begin : stop + 1]:
                self.stream.emit(Commit(begin, tokens, logprobs=tuple(reported[-len(tokens) :])))
        return reused

    def ready(self) -> Segment | None:
        """Return a segment of the next chunk, or None while the stream is paused."""
        if self.stream.paused:
            return None
        start = self.session.length
        stop = min(start + CHUNK_ROWS, self.wanted.until - 1)
        self.sessions.reserve(self.session, stop)
        tokens, chain = self.context.tokens[start:stop], tree.chain(stop - start)
        return Segment(self.session.table, start, tokens, chain, stop - start, divisible=True)
