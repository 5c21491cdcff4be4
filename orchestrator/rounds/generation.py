"""A request, and the state of its generation: the committed tokens, and why the generation ended.

The module is pure. Only the state in this module is authoritative; the services hold copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from tandem.protos.streams import PromptLogprobs
from tandem.protos.types import (
    NO_DRAFT_SHAPE,
    Context,
    DraftShape,
    SamplingParams,
    TokenLogprobs,
)


class Finish(Enum):
    """The reasons why a generation ended, with the same numeric values as in the client API."""

    STOP = 1
    LENGTH = 2


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A validated request, completed with defaults. `completion` contains tokens that the client
    already has. `prompt_logprobs` is the number of likeliest tokens to report at each position of
    the prompt. These log-probabilities are reported from position `prompt_logprobs_from` on.
    """

    request_id: str
    session_id: bytes
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    shape: DraftShape = NO_DRAFT_SHAPE
    cache_scope: bytes = b""
    completion: tuple[int, ...] = ()
    traceparent: str = ""  # trace context of the request's span
    known: tuple[int, ...] = ()  # tokens that the completion may repeat; drafts are taken from them
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 1  # the first token has no log-probability


@dataclass(slots=True)
class Generation:
    """The state of one request's generation. The log-probabilities of the prompt tokens before
    index `prompt_logprobs_from` have been reported. `turn` is the turn of the newest opening, at
    the drafter or the verifier.
    """

    session_id: bytes
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    completion: list[int] = field(default_factory=list)
    finish: Finish | None = None
    matched_token_id: int | None = None
    cache_scope: bytes = b""
    turn: int = 0
    group: str = ""  # group of the verifier that generated the newest tokens
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 1

    @classmethod
    def of(cls, request: RunRequest) -> Generation:
        """Return the generation that a request starts or continues."""
        return cls(
            request.session_id,
            request.prompt,
            request.sampling,
            request.max_new_tokens,
            request.stop_token_ids,
            list(request.completion),
            cache_scope=request.cache_scope,
            prompt_logprobs=request.prompt_logprobs,
            prompt_logprobs_from=request.prompt_logprobs_from,
        )

    @property
    def length(self) -> int:
        """The number of committed tokens: prompt and completion."""
        return len(self.prompt) + len(self.completion)

    @property
    def until(self) -> int:
        """The largest number of committed tokens that the request allows."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def wanted_prompt_logprobs(self) -> PromptLogprobs | None:
        """The log-probabilities of the prompt that are still to be reported, or None."""
        if self.prompt_logprobs is None or self.prompt_logprobs_from >= len(self.prompt):
            return None
        return PromptLogprobs(self.prompt_logprobs_from, len(self.prompt), self.prompt_logprobs)

    def context(self) -> Context:
        """Return the context of the next opening, with all committed tokens. A service that still
        holds the session, or a prefix of its tokens, reuses its KV cache.
        """
        self.turn += 1
        tokens = (*self.prompt, *self.completion)
        return Context(self.session_id, self.turn, 0, tokens, client=self.cache_scope)

    def extend(self, start: int, tokens: Sequence[int]) -> tuple[int, ...]:
        """Commit `tokens`, which begin at position `start`, up to the first stop token or the
        limit. Returns the tokens that were not committed before.
        """
        assert start <= self.length, "the commit leaves a gap in the text"
        fresh = tuple(tokens[self.length - start :][: self.until - self.length])
        for index, token in enumerate(fresh):
            if token in self.stop_token_ids:
                self.finish, self.matched_token_id = Finish.STOP, token
                fresh = fresh[: index + 1]
                break
        self.completion += fresh
        self._end_at_limit()
        return fresh

    def take_prompt_logprobs(
        self, start: int, logprobs: Sequence[TokenLogprobs]
    ) -> tuple[TokenLogprobs, ...]:
        """Record the log-probabilities of the tokens from position `start` on, if these tokens
        belong to the prompt. Returns the log-probabilities that were not reported before.
        """
        if start >= len(self.prompt):
            return ()
        assert start <= self.prompt_logprobs_from, "the log-probabilities have a gap"
        fresh = tuple(logprobs[self.prompt_logprobs_from - start :])
        self.prompt_logprobs_from += len(fresh)
        self._end_at_limit()
        return fresh

    def _end_at_limit(self) -> None:
        if self.finish is None and self.length >= self.until and not self.wanted_prompt_logprobs:
            self.finish = Finish.LENGTH
