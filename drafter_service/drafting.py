"""What a drafter does for a call: with the tokens of its own model, or with a target's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from drafter_service import foreign, proposer
from drafter_service.guesses import way
from drafter_service.translation import Translation
from drafter_service.visible import visible_tokens
from engine.host import Host, check_tokens
from engine.task import Job
from protos.fingerprint import fingerprint, tokens_by_id
from protos.types import Context, DraftShape, ModelDescription, SamplingParams


class Drafting(Protocol):
    """The drafts of one model."""

    def propose(self, context: Context, shape: DraftShape, params: SamplingParams) -> Job:
        """A job that answers with a proposal; raises InvalidRequest."""

    def close(self, session_id: bytes) -> None:
        """Forget a session; called by the model thread."""

    def describe(self) -> ModelDescription:
        """What callers need to know."""


class Own:
    """Draft model and target share their tokens."""

    def __init__(self, host: Host) -> None:
        self._host = host
        model = host.forward.model
        self._visible = visible_tokens(host.config.model, model.token_count).to(model.device)

    def propose(self, context: Context, shape: DraftShape, params: SamplingParams) -> Job:
        """A chain or tree, without the levels that lie behind the draft model's context."""
        check_tokens("context.tokens", context.tokens, self._host.forward.model.vocab_size)
        room = max(0, self._host.sessions.context_length - context.length)
        shape = replace(shape, levels=min(shape.levels, room))
        how = way(shape, params, context.length, self._visible)
        return proposer.propose(self._host.sessions, context, how)

    def close(self, session_id: bytes) -> None:
        """Forget a session."""
        self._host.sessions.close(session_id)

    def describe(self) -> ModelDescription:
        """The draft model."""
        return self._host.describe()


class Foreign:
    """The target has another tokenizer, that of the model directory `speaks`."""

    def __init__(self, host: Host, speaks: Path) -> None:
        self._host = host
        self._fingerprint = fingerprint(speaks)
        self._vocab_size = max(tokens_by_id(speaks)) + 1
        own, theirs = (
            Tokenizer.from_file(str(folder / "tokenizer.json"))
            for folder in (host.config.model, speaks)
        )
        self._translation = Translation(own, theirs)
        self._mirrors = foreign.Mirrors(2 * host.config.max_sessions)

    def propose(self, context: Context, shape: DraftShape, params: SamplingParams) -> Job:
        """A chain."""
        check_tokens("context.tokens", context.tokens, self._vocab_size)
        return foreign.propose(
            self._host.sessions,
            context,
            shape,
            params,
            self._host.forward.model.token_count,
            self._translation,
            self._mirrors,
        )

    def close(self, session_id: bytes) -> None:
        """Forget a session and its mirror."""
        self._mirrors.close(session_id)
        self._host.sessions.close(session_id)

    def describe(self) -> ModelDescription:
        """The draft model with the target's tokens, as far as their tokenizer knows them."""
        return replace(
            self._host.describe(),
            tokenizer_fingerprint=self._fingerprint,
            vocab_size=self._vocab_size,
            end_token_ids=(),
        )


def drafting(host: Host) -> Drafting:
    """As configured; raises Unusable."""
    return Foreign(host, host.config.speaks) if host.config.speaks else Own(host)
