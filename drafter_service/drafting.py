"""Drafter implementations. Each drafter starts a drafting job for every opening.

A TreeDrafter works with the draft model's own tokens. A ChainDrafter translates between the draft
model's tokens and those of a target with another tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from tandem.drafter_service.foreign.chains import ChainJob, ChainSetup
from tandem.drafter_service.foreign.target_text import TargetTexts
from tandem.drafter_service.foreign.translation import Translation
from tandem.drafter_service.tree.deferred_prefill import DeferredPrefill
from tandem.drafter_service.tree.expansion import branching, is_whole
from tandem.drafter_service.tree.growing import GrowingTree
from tandem.drafter_service.tree.session_text import CommitTokens, SessionText
from tandem.drafter_service.tree.token_tree import TokenTree
from tandem.drafter_service.tree.vocabulary import Vocabulary, visible_tokens
from tandem.drafter_service.tree.whole import whole_drafts
from tandem.drafter_service.tree.worth import Conditions, DrafterHistory, Worth
from tandem.engine.grammars import Grammars
from tandem.engine.host import Host
from tandem.engine.schedule.job_stream import JobStream
from tandem.engine.schedule.task import Job
from tandem.protos.fingerprint import Likeness, fingerprint, likeness, tokens_by_id
from tandem.protos.streams import Drafting, Proposal
from tandem.protos.tokenizer import texts_of, tokenizer_of
from tandem.protos.types import ModelDescription

log = structlog.get_logger()


class Drafter(Protocol):
    """Interface of the drafters. A drafter makes its proposals with one draft model."""

    def draft(
        self, opening: Drafting, stream: JobStream[CommitTokens, Proposal], conditions: Conditions
    ) -> Job:
        """Return a job that sends proposals for an opening. The job raises SessionMiss, StaleTurn,
        Busy, Internal, or InvalidRequest.
        """

    def close(self, session_id: bytes, turn: int) -> None:
        """Forget a session, unless it was opened again after `turn`. The model thread calls this
        function.
        """

    def describe(self) -> ModelDescription:
        """Describe the draft model to callers."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """The vocabulary of the target that the setting `speaks` specifies, and how similar it is to
    the draft model's vocabulary.
    """

    model: Path  # the target's directory or file
    fingerprint: str
    tokens: Mapping[int, str]
    own: Mapping[int, str]
    likeness: Likeness

    @classmethod
    def of(cls, speaks: Path, draft: Path) -> Spoken:
        """Read and compare the vocabularies of the target `speaks` and of the model `draft`. Raises
        Unusable if a vocabulary cannot be read.
        """
        tokens, own = tokens_by_id(speaks), tokens_by_id(draft)
        return cls(speaks, fingerprint(speaks), tokens, own, likeness(own, tokens))

    def as_spoken(self, model: ModelDescription, masked: int = 0) -> ModelDescription:
        """Describe a draft model that proposes the target's tokens. `masked` is the number of the
        draft model's own tokens that are never proposed.
        """
        return replace(
            model,
            tokenizer_fingerprint=self.fingerprint,
            vocab_size=max(self.tokens) + 1,
            end_token_ids=(),
            tokenizer=self.likeness,
            masked_tokens=masked,
        )


class TreeDrafter:
    """Drafts token trees for a target that has the draft model's vocabulary. If `spoken` is given,
    the two vocabularies differ in a few tokens.
    """

    def __init__(self, host: Host, spoken: Spoken | None = None) -> None:
        self._host = host
        self._sessions = host.sessions
        self._history = DrafterHistory()
        model = host.runner.model
        texts = texts_of(host.config.model, model.token_count)
        self._visible = visible_tokens(texts).to(model.device)
        self._spoken = spoken
        self._vocabulary = Vocabulary(model.token_count)
        if spoken:
            self._vocabulary = Vocabulary.shared(model.token_count, spoken.own, spoken.tokens)
        masked = self._vocabulary.masked
        ends = [token for token in model.end_token_ids if token not in masked]
        read = spoken.model if spoken else host.config.model
        self._grammars = Grammars(read, ends, host.thread.wake)

    def draft(
        self, opening: Drafting, stream: JobStream[CommitTokens, Proposal], conditions: Conditions
    ) -> Job:
        """Draft token trees for one session. Either a tree grows continuously as the session's text
        advances, or a complete draft is made after each commit. No drafted token lies beyond the
        draft model's context length.
        """
        params = opening.sampling
        special = is_whole(opening.shape, params)
        whole = special or opening.lockstep or opening.once
        shape = branching(opening.shape) if special else opening.shape
        expander_of = partial(self._vocabulary.expander, shape, params, visible=self._visible)
        costs, least = self._host.thread.costs, self._host.config.draft_cost
        worth = None if whole else Worth(conditions, costs, self._history, least)
        clock, inbox = time.perf_counter, stream.inbox
        read = self._vocabulary.read
        grammar = self._grammars.begin(params, opening.context)
        with DeferredPrefill(self._sessions, opening.context, inbox, worth, clock, read) as prefill:
            first = yield from self._sessions.feed(opening.context, prefill.step_input)
            session, context = prefill.session, prefill.context
            self._sessions.keep(session, context, ())
            limit = self._sessions.context_length
            tree = TokenTree(shape, context.length, limit, context.turn, worth)
            text = SessionText(self._sessions, session, opening, tree, self._vocabulary, grammar)
            if worth is None:
                yield from whole_drafts(text, expander_of, stream, first, opening.once)
                return
            growing = GrowingTree(text, expander_of(context.length), stream, worth, clock, first)
            while True:
                growing.take((yield from text.feed(growing)))

    def close(self, session_id: bytes, turn: int) -> None:
        """Forget a session."""
        self._sessions.close(session_id, turn)

    def describe(self) -> ModelDescription:
        """Describe the draft model. If the drafter proposes a target's tokens, the description
        names the target's tokenizer and vocabulary size instead of the draft model's own.
        """
        model = self._host.describe()
        if self._spoken:
            return self._spoken.as_spoken(model, len(self._vocabulary.masked))
        return replace(model, tokenizer=Likeness.EQUAL)


class ChainDrafter:
    """Drafts chains for a target with another tokenizer. `spoken` holds the target's vocabulary."""

    def __init__(self, host: Host, spoken: Spoken) -> None:
        self._host = host
        self._spoken = spoken
        draft, target = (tokenizer_of(model) for model in (host.config.model, spoken.model))
        self._texts = TargetTexts(2 * host.config.max_sessions)
        tokens = host.runner.model.token_count
        translation = Translation(draft, target)
        self._setup = ChainSetup(host.sessions, translation, self._texts, tokens)

    def draft(
        self, opening: Drafting, stream: JobStream[CommitTokens, Proposal], conditions: Conditions
    ) -> Job:
        """Return a job that sends chains of drafted tokens, translated to the target's tokens."""
        return ChainJob(self._setup, opening, stream).run()

    def close(self, session_id: bytes, turn: int) -> None:
        """Forget a session, and the target's tokens kept for it."""
        self._texts.close(session_id)
        self._host.sessions.close(session_id, turn)

    def describe(self) -> ModelDescription:
        """Describe the draft model, but with the target's tokenizer and vocabulary size."""
        return self._spoken.as_spoken(self._host.describe())


def drafter_of(host: Host) -> Drafter:
    """Return the drafter that the configuration requires. Raises Unusable if a vocabulary cannot be
    read.

    The drafter translates tokens if the target's tokenizer is neither equal nor nearly equal to the
    draft model's tokenizer.
    """
    config = host.config
    spoken = Spoken.of(config.speaks, config.model) if config.speaks else None
    foreign = spoken and spoken.likeness is Likeness.FOREIGN
    drafter = ChainDrafter(host, spoken) if spoken and foreign else TreeDrafter(host, spoken)
    model = drafter.describe()
    log.info("tokens of the target", tokenizer=model.tokenizer, masked=model.masked_tokens)
    return drafter
