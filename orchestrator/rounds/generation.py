"""A request, and its state: the committed tokens and when they end.

Pure. Only this state is authoritative; what the services hold are copies.
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
    """Why a generation ended; the numbers are the client API's."""

    STOP = 1
    LENGTH = 2


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request that was checked and completed with defaults; `completion` are tokens that its
    client has already. `prompt_logprobs`: how many of the likeliest tokens beside each of the
    prompt, of which those of its first `told` tokens are not wanted any more.
    """

    request_id: str
    session_id: bytes
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    shape: DraftShape = NO_DRAFT_SHAPE
    client: bytes = b""
    completion: tuple[int, ...] = ()
    traceparent: str = ""  # of the span that runs it
    known: tuple[int, ...] = ()  # tokens that the completion may repeat
    prompt_logprobs: int | None = None
    told: int = 1  # the first token has none


@dataclass(slots=True)
class Generation:
    """A growing completion, and how far the log-probabilities of its prompt have come. `turn` is
    that of the newest opening, at either service.
    """

    session_id: bytes
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    completion: list[int] = field(default_factory=list)
    finish: Finish | None = None
    matched_token_id: int | None = None
    client: bytes = b""
    turn: int = 0
    group: str = ""  # of verifiers, that the newest tokens are from
    prompt_logprobs: int | None = None
    told: int = 1

    @classmethod
    def of(cls, request: RunRequest) -> Generation:
        """The generation that a request starts, or continues."""
        return cls(
            request.session_id,
            request.prompt,
            request.sampling,
            request.max_new_tokens,
            request.stop_token_ids,
            list(request.completion),
            client=request.client,
            prompt_logprobs=request.prompt_logprobs,
            told=request.told,
        )

    @property
    def length(self) -> int:
        """Committed tokens: prompt and completion."""
        return len(self.prompt) + len(self.completion)

    @property
    def until(self) -> int:
        """Committed tokens at the most."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def untold(self) -> PromptLogprobs | None:
        """What is still wanted of the prompt."""
        if self.prompt_logprobs is None or self.told >= len(self.prompt):
            return None
        return PromptLogprobs(self.told, len(self.prompt), self.prompt_logprobs)

    def context(self) -> Context:
        """The context of the next opening: all tokens. A service that still holds the session, or a
        prefix of its text, uses what it has cached.
        """
        self.turn += 1
        tokens = (*self.prompt, *self.completion)
        return Context(self.session_id, self.turn, 0, tokens, client=self.client)

    def extend(self, start: int, tokens: Sequence[int]) -> tuple[int, ...]:
        """Commit that the text from `start` on is `tokens`, up to the first stop token or the
        limit; the new tokens.
        """
        assert start <= self.length, "a fact that leaves a gap"
        fresh = tuple(tokens[self.length - start :][: self.until - self.length])
        for place, token in enumerate(fresh):
            if token in self.stop_token_ids:
                self.finish, self.matched_token_id = Finish.STOP, token
                fresh = fresh[: place + 1]
                break
        self.completion += fresh
        self._end_at_limit()
        return fresh

    def tell(self, start: int, logprobs: Sequence[TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
        """Take the log-probabilities of tokens from `start` on, if they are of the prompt; those
        that are new.
        """
        if start >= len(self.prompt):
            return ()
        assert start <= self.told, "a fact that leaves a gap"
        fresh = tuple(logprobs[self.told - start :])
        self.told += len(fresh)
        self._end_at_limit()
        return fresh

    def _end_at_limit(self) -> None:
        if self.finish is None and self.length >= self.until and not self.untold:
            self.finish = Finish.LENGTH
