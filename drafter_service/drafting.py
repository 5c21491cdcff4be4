"""What a drafter does for an opening: with the tokens of its own model, or with a target's."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from drafter_service.foreign.chains import Chains, Engine
from drafter_service.foreign.mirror import Mirrors
from drafter_service.foreign.translation import Translation
from drafter_service.tree.growing import Growing
from drafter_service.tree.growth import Growth
from drafter_service.tree.guesses import branching, guesser, is_whole
from drafter_service.tree.reading import Reading
from drafter_service.tree.text import Report, Text
from drafter_service.tree.whole import drafts
from drafter_service.tree.worth import Conditions, Known, Worth
from drafter_service.visible import visible_tokens
from engine.host import Host
from engine.schedule.port import Port
from engine.schedule.task import Job
from protos.fingerprint import fingerprint, tokens_by_id
from protos.streams import Drafting, Guess
from protos.tokenizer import tokenizer_of
from protos.types import ModelDescription


class Drafter(Protocol):
    """The guesses of one model."""

    def draft(self, opening: Drafting, port: Port[Report, Guess], conditions: Conditions) -> Job:
        """A job that guesses behind an opening; raises SessionMiss, StaleTurn, Busy, Internal, or
        InvalidRequest.
        """

    def close(self, session_id: bytes) -> None:
        """Forget a session; called by the model thread."""

    def describe(self) -> ModelDescription:
        """What callers need to know."""


class Own:
    """Draft model and target share their tokens."""

    def __init__(self, host: Host) -> None:
        self._host, self._sessions = host, host.sessions
        self._known = Known()
        model = host.forward.model
        self._visible = visible_tokens(host.config.model, model.token_count).to(model.device)

    def draft(self, opening: Drafting, port: Port[Report, Guess], conditions: Conditions) -> Job:
        """A tree that grows, or whole drafts; no node lies behind the draft model's context."""
        params = opening.sampling
        special = is_whole(opening.shape, params)
        whole = special or opening.lockstep or opening.once
        shape = branching(opening.shape) if special else opening.shape
        guess = partial(guesser, shape, params, visible=self._visible)
        rates, cost = self._host.thread.rates, self._host.config.draft_cost
        worth = None if whole else Worth(conditions, rates, self._known, cost)
        with Reading(self._sessions, opening.context, port.inbox, worth) as reading:
            first = yield from self._sessions.feed(opening.context, reading.offer)
            session, context = reading.session, reading.context
            self._sessions.keep(session, context, ())
            limit, visible = self._sessions.context_length, len(self._visible)
            growth = Growth(shape, context.length, limit, context.turn, worth)
            text = Text(self._sessions, session, opening, growth, visible)
            if worth is None:
                yield from drafts(text, guess, port, first, opening.once)
                return
            guesses = guess(context.length)
            growing = Growing(text, guesses, port, worth, time.perf_counter, first)
            while True:
                growing.take((yield from text.feed(growing)))

    def close(self, session_id: bytes) -> None:
        """Forget a session."""
        self._sessions.close(session_id)

    def describe(self) -> ModelDescription:
        """The draft model."""
        return self._host.describe()


class Foreign:
    """The target has another tokenizer, that of the model directory `speaks`."""

    def __init__(self, host: Host, speaks: Path) -> None:
        self._host = host
        self._fingerprint = fingerprint(speaks)
        self._vocab_size = max(tokens_by_id(speaks)) + 1
        own, theirs = (tokenizer_of(model) for model in (host.config.model, speaks))
        self._mirrors = Mirrors(2 * host.config.max_sessions)
        tokens = host.forward.model.token_count
        translation = Translation(own, theirs)
        self._engine = Engine(host.sessions, translation, self._mirrors, tokens)

    def draft(self, opening: Drafting, port: Port[Report, Guess], conditions: Conditions) -> Job:
        """Chains."""
        return Chains(self._engine, opening, port).run()

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


def drafter(host: Host) -> Drafter:
    """As configured; raises Unusable."""
    return Foreign(host, host.config.speaks) if host.config.speaks else Own(host)
