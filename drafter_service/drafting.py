"""What a drafter does for an opening: with the tokens of its own model, or with a target's."""

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
from tandem.drafter_service.tree.expansion import branching, expander, is_whole
from tandem.drafter_service.tree.growing import GrowingTree
from tandem.drafter_service.tree.session_text import FactTokens, SessionText
from tandem.drafter_service.tree.token_tree import TokenTree
from tandem.drafter_service.tree.vocabulary import Vocabulary
from tandem.drafter_service.tree.whole import whole_drafts
from tandem.drafter_service.tree.worth import Conditions, DrafterHistory, Worth
from tandem.drafter_service.visible import visible_tokens
from tandem.engine.grammars import Grammars
from tandem.engine.host import Host
from tandem.engine.schedule.job_stream import JobStream
from tandem.engine.schedule.task import Job
from tandem.protos.fingerprint import fingerprint, nearly_same, tokens_by_id
from tandem.protos.streams import Drafting, Guess
from tandem.protos.tokenizer import tokenizer_of
from tandem.protos.types import ModelDescription

log = structlog.get_logger()


class Drafter(Protocol):
    """The guesses of one model."""

    def draft(
        self, opening: Drafting, stream: JobStream[FactTokens, Guess], conditions: Conditions
    ) -> Job:
        """A job that guesses after an opening; raises SessionMiss, StaleTurn, Busy, Internal, or
        InvalidRequest.
        """

    def close(self, session_id: bytes, turn: int) -> None:
        """Forget a session that has not been opened since `turn`; called by the model thread."""

    def describe(self) -> ModelDescription:
        """What callers need to know."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """The tokens of a target that a drafter with another tokenizer speaks."""

    fingerprint: str
    tokens: Mapping[int, str]

    @classmethod
    def of(cls, speaks: Path) -> Spoken:
        """Those of a model directory; raises Unusable."""
        return cls(fingerprint(speaks), tokens_by_id(speaks))

    def as_spoken(self, model: ModelDescription) -> ModelDescription:
        """A draft model with these tokens."""
        return replace(
            model,
            tokenizer_fingerprint=self.fingerprint,
            vocab_size=max(self.tokens) + 1,
            end_token_ids=(),
        )


class TreeDrafter:
    """Draft model and target share their tokens, or nearly all of them: `speaks` is the target's
    model directory then.
    """

    def __init__(self, host: Host, speaks: Path | None = None) -> None:
        self._host, self._sessions = host, host.sessions
        self._history = DrafterHistory()
        model = host.runner.model
        self._visible = visible_tokens(host.config.model, model.token_count).to(model.device)
        self._vocabulary = Vocabulary(model.token_count)
        spoken = speaks or host.config.model
        self._grammars = Grammars(spoken, model.end_token_ids, host.thread.wake)
        self._speaks = Spoken.of(speaks) if speaks else None
        if self._speaks:
            own = tokens_by_id(host.config.model)
            self._vocabulary = Vocabulary.shared(model.token_count, own, self._speaks.tokens)
            foreign = len(self._vocabulary.foreign)
            log.info("nearly the target's tokenizer", never_drafted=foreign, tokens=len(own))

    def draft(
        self, opening: Drafting, stream: JobStream[FactTokens, Guess], conditions: Conditions
    ) -> Job:
        """A tree that grows, or whole drafts; no node lies after the draft model's context."""
        params = opening.sampling
        special = is_whole(opening.shape, params)
        whole = special or opening.lockstep or opening.once
        shape = branching(opening.shape) if special else opening.shape
        guess = partial(expander, shape, params, visible=self._visible)
        rates, cost = self._host.thread.costs.rates, self._host.config.draft_cost
        worth = None if whole else Worth(conditions, rates, self._history, cost)
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
                yield from whole_drafts(text, guess, stream, first, opening.once)
                return
            guesses = guess(context.length)
            growing = GrowingTree(text, guesses, stream, worth, clock, first)
            while True:
                growing.take((yield from text.feed(growing)))

    def close(self, session_id: bytes, turn: int) -> None:
        """Forget a session."""
        self._sessions.close(session_id, turn)

    def describe(self) -> ModelDescription:
        """The draft model, with the target's tokens."""
        model = self._host.describe()
        return self._speaks.as_spoken(model) if self._speaks else model


class ChainDrafter:
    """The target has another tokenizer, that of the model directory `speaks`."""

    def __init__(self, host: Host, speaks: Path) -> None:
        self._host, self._speaks = host, Spoken.of(speaks)
        draft, target = (tokenizer_of(model) for model in (host.config.model, speaks))
        self._texts = TargetTexts(2 * host.config.max_sessions)
        tokens = host.runner.model.token_count
        translation = Translation(draft, target)
        self._engine = ChainSetup(host.sessions, translation, self._texts, tokens)

    def draft(
        self, opening: Drafting, stream: JobStream[FactTokens, Guess], conditions: Conditions
    ) -> Job:
        """Chains."""
        return ChainJob(self._engine, opening, stream).run()

    def close(self, session_id: bytes, turn: int) -> None:
        """Forget a session and its text."""
        self._texts.close(session_id)
        self._host.sessions.close(session_id, turn)

    def describe(self) -> ModelDescription:
        """The draft model with the target's tokens, as far as its tokenizer knows them."""
        return self._speaks.as_spoken(self._host.describe())


def drafter_of(host: Host) -> Drafter:
    """As configured: it translates where the target's tokenizer is another one than its own, and
    not only nearly the same; raises Unusable.
    """
    speaks = host.config.speaks
    if speaks is None or nearly_same(tokens_by_id(host.config.model), tokens_by_id(speaks)):
        return TreeDrafter(host, speaks)
    return ChainDrafter(host, speaks)
