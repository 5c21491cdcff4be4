"""One request's state: the committed tokens, what the two services hold of them, and when it ends.

Pure: calls and answers are values. The committed tokens are owned here alone; both caches are
mirrors.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from protos import tree
from protos.types import Context, Draft, Proposal, SamplingParams, TokenLogprobs, Verdict


class Finish(Enum):
    """Why a generation ended; the numbers are the wire's."""

    STOP = 1
    LENGTH = 2


@dataclass(slots=True)
class Cursor:
    """What a service is believed to hold: `cached` committed tokens of the session that it opened
    as `epoch`.
    """

    turn: int = 0
    cached: int = 0
    epoch: int = 0

    def forget(self) -> None:
        """The service no longer holds the session: the next call sends everything."""
        self.cached, self.epoch = 0, 0


@dataclass(frozen=True, slots=True)
class Advance:
    """What one round added: emitted tokens, of which `accepted` were drafted, out of `drafted`
    verified. `reused` committed tokens were not computed anew when the session was opened.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    reused: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(slots=True)
class Generation:
    """A growing completion."""

    session_id: bytes
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    completion: list[int] = field(default_factory=list)
    finish: Finish | None = None
    matched_token_id: int | None = None
    client: bytes = b""
    drafter: Cursor = field(default_factory=Cursor)
    verifier: Cursor = field(default_factory=Cursor)

    @property
    def length(self) -> int:
        """Committed tokens: prompt and completion."""
        return len(self.prompt) + len(self.completion)

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_new_tokens - len(self.completion)

    def context(self, cursor: Cursor) -> Context:
        """The next call to the service of a cursor: what it holds stays, the rest is sent."""
        cursor.turn += 1
        return Context(
            session_id=self.session_id,
            turn=cursor.turn,
            base=cursor.cached,
            tokens=self._tokens_from(cursor.cached),
            epoch=cursor.epoch,
            client=b"" if cursor.epoch else self.client,
        )

    def drafted(self, proposal: Proposal) -> None:
        """The drafter now holds the committed tokens and perhaps leading nodes of its draft."""
        self.drafter.cached, self.drafter.epoch = proposal.cached_len, proposal.epoch

    def advance(self, draft: Draft, verdict: Verdict) -> Advance:
        """Commit the accepted path and the next token, up to the first stop token, and move both
        cursors.
        """
        kept = self.length + tree.leading(verdict.accepted)
        self.drafter.cached = min(self.drafter.cached, kept)
        self.verifier.cached, self.verifier.epoch = verdict.cached_len, verdict.epoch
        tokens = [*(draft.tokens[node] for node in verdict.accepted), verdict.next_token]
        emitted: list[int] = []
        for token in tokens[: self.remaining]:
            emitted.append(token)
            if token in self.stop_token_ids:
                self.finish, self.matched_token_id = Finish.STOP, token
                break
        self.completion += emitted
        barred = len(self.completion) < self.sampling.min_new_tokens
        if self.sampling.end_tokens and not barred:
            self.sampling = replace(self.sampling, min_new_tokens=0, end_tokens=())
        if self.finish is None and self.remaining <= 0:
            self.finish = Finish.LENGTH
        accepted = min(len(verdict.accepted), len(emitted))
        told = verdict.logprobs[: len(emitted)]
        return Advance(tuple(emitted), len(draft), accepted, verdict.reused, told)

    def _tokens_from(self, start: int) -> tuple[int, ...]:
        if start < len(self.prompt):
            return self.prompt[start:] + tuple(self.completion)
        return tuple(self.completion[start - len(self.prompt) :])
