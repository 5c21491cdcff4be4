"""What a drafter does for an opening: with the tokens of its own model, or with a target's."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from tandem.drafter_service.foreign.chains import ChainJob, ChainSetup
from tandem.drafter_service.foreign.target_text import TargetTexts
from tandem.drafter_service.foreign.translation import Translation
from tandem.drafter_service.tree.deferred_prefill import DeferredPrefill
from tandem.drafter_service.tree.expansion import branching, expander, is_whole
from tandem.drafter_service.tree.growing import GrowingTree
from tandem.drafter_service.tree.session_text import FactTokens, SessionText
from tandem.drafter_service.tree.token_tree import TokenTree
from tandem.drafter_service.tree.whole import whole_drafts
from tandem.drafter_service.tree.worth import Conditions, DrafterHistory, Worth
from tandem.drafter_service.visible import visible_tokens
from tandem.engine.host import Host
from tandem.engine.schedule.job_stream import JobStream
from tandem.engine.schedule.task import Job
from tandem.protos.fingerprint import fingerprint, tokens_by_id
from tandem.protos.streams import Drafting, Guess
from tandem.protos.tokenizer import tokenizer_of
from tandem.protos.types import ModelDescription


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


class TreeDrafter:
    """Draft model and target share their tokens."""

    def __init__(self, host: Host) -> None:
        self._host, self._sessions = host, host.sessions
        self._history = DrafterHistory()
        model = host.runner.model
        self._visible = visible_tokens(host.config.model, model.token_count).to(model.device)

    def draft(
        self, opening: Drafting, stream: JobStream[FactTokens, Guess], conditions: Conditions
    ) -> Job:
        """A tree that grows, or whole drafts; no node lies after the draft model's context."""
        params = opening.sampling
        special = is_whole(opening.shape, params)
        whole = special or opening.lockstep or opening.once
        shape = branching(opening.shape) if special else opening.shape
        guess = partial(expander, shape, params, visible=self._visible)
        rates, cost = self._host.thread.rates, self._host.config.draft_cost
        worth = None if whole else Worth(conditions, rates, self._history, cost)
        clock, inbox = time.perf_counter, stream.inbox
        with DeferredPrefill(self._sessions, opening.context, inbox, worth, clock) as prefill:
            first = yield from self._sessions.feed(opening.context, prefill.step_input)
            session, context = prefill.session, prefill.context
            self._sessions.keep(session, context, ())
            limit, visible = self._sessions.context_length, len(self._visible)
            tree = TokenTree(shape, context.length, limit, context.turn, worth)
            text = SessionText(self._sessions, session, opening, tree, visible)
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
        """The draft model."""
        return self._host.describe()


class ChainDrafter:
    """The target has another tokenizer, that of the model directory `speaks`."""

    def __init__(self, host: Host, speaks: Path) -> None:
        self._host = host
        self._fingerprint = fingerprint(speaks)
        self._vocab_size = max(tokens_by_id(speaks)) + 1
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
        return replace(
            self._host.describe(),
            tokenizer_fingerprint=self._fingerprint,
            vocab_size=self._vocab_size,
            end_token_ids=(),
        )


def drafter_of(host: Host) -> Drafter:
    """As configured; raises Unusable."""
    return ChainDrafter(host, host.config.speaks) if host.config.speaks else TreeDrafter(host)
