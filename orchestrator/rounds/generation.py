"""One request's state: the committed tokens and when they end.

Pure: what is said and heard are values. The committed tokens are owned here alone; what the
services hold are mirrors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from protos.types import Context, SamplingParams


class Finish(Enum):
    """Why a generation ended; the numbers are the wire's."""

    STOP = 1
    LENGTH = 2


@dataclass(slots=True)
class Generation:
    """A growing completion. `turn` is that of the newest opening, at whichever service."""

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

    @property
    def length(self) -> int:
        """Committed tokens: prompt and completion."""
        return len(self.prompt) + len(self.completion)

    @property
    def until(self) -> int:
        """Committed tokens at the most."""
        return len(self.prompt) + self.max_new_tokens

    def context(self) -> Context:
        """What a service is opened with: everything. One that still holds the session, or the
        beginning of its text, finds that by itself.
        """
        self.turn += 1
        tokens = (*self.prompt, *self.completion)
        return Context(self.session_id, self.turn, 0, tokens, client=self.client)

    def extend(self, start: int, tokens: Sequence[int]) -> tuple[int, ...]:
        """Commit that the text from `start` on is `tokens`, up to the first stop token or the
        limit: what is new of it.
        """
        assert start <= self.length, "a fact that leaves a gap"
        fresh = tuple(tokens[self.length - start :][: self.until - self.length])
        for place, token in enumerate(fresh):
            if token in self.stop_token_ids:
                self.finish, self.matched_token_id = Finish.STOP, token
                fresh = fresh[: place + 1]
                break
        self.completion += fresh
        if self.finish is None and self.length >= self.until:
            self.finish = Finish.LENGTH
        return fresh
