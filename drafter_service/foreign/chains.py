"""Drafting for a target that speaks another tokenizer's tokens: mirror, translate, draft a chain,
translate back.

A job for the model thread. The engine's session holds our own tokens; what a caller believes to be
cached are theirs, and a mirror of them stands for it.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace

import torch

from drafter_service.foreign.mirror import Mirrors
from drafter_service.foreign.translation import Translation
from drafter_service.tree.growth import adapted
from drafter_service.tree.guesses import LOGIT_ERROR
from drafter_service.tree.text import Report, news
from drafter_service.tree.unread import Unread, behind
from drafter_service.tree.waiting import Waiting
from engine.cache.session import Session, shared
from engine.cache.sessions import Sessions
from engine.forward.offer import Offer
from engine.forward.segment import Segment
from engine.schedule.port import Port
from engine.schedule.task import Job
from protos import tree
from protos.streams import Drafting, Guess
from protos.types import DraftShape, Rule

SPARE = 4  # own tokens beyond the levels asked for: a word may take more of ours than of theirs
ENOUGH = 2  # tokens of a chain that are left, with which no other is drafted
DOUBT = 0.2  # nobody looks behind a token that is accepted with less: of a chain of 4, at
# temperature 0, 1.47 are accepted instead of 1.53, for 3.4 steps instead of 4.1; of one of 8, 1.64
# of 1.81 for 4.1 of 8.4


@dataclass(frozen=True, slots=True)
class Engine:
    """What chains are made with; `tokens` of our own vocabulary are the tokenizer's."""

    sessions: Sessions
    translation: Translation
    mirrors: Mirrors
    tokens: int


@dataclass(slots=True)
class Chain:
    """A growing chain of our own tokens: `chances` are those of each and all before it to be
    accepted.
    """

    shape: DraftShape
    temperature: float
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def add(self, logits: torch.Tensor) -> bool:
        """Add the likeliest token of [vocab]; says whether to look behind it."""
        likely = (logits / math.hypot(self.temperature, LOGIT_ERROR)).softmax(-1)
        self.tokens.append(int(likely.argmax()))
        self.chances.append(float(likely.max()) * (self.chances[-1] if self.chances else 1.0))
        return self.chances[-1] >= DOUBT and self._is_confident(logits)

    def gains(self, count: int) -> tuple[float, ...]:
        """The log-probabilities of as many tokens that say the same in other words, each to be
        accepted if the one before it is.
        """
        own = len(self.tokens)
        ends = [math.log(self.chances[-(-own * n // count) - 1]) for n in range(1, count + 1)]
        return tuple(end - before for end, before in zip(ends, [0.0, *ends], strict=False))

    def _is_confident(self, logits: torch.Tensor) -> bool:
        """Whether the draft model itself finds its likeliest token likely enough."""
        least = self.shape.confidence
        warm = logits / (self.temperature or 1.0)
        return not least or float(warm.softmax(-1).max()) >= least


class Chains:
    """The chains of one opening. Where our words do not fit into the draft model's context, they
    are empty. Raises SessionMiss.
    """

    def __init__(self, engine: Engine, opening: Drafting, port: Port[Report, Guess]) -> None:
        self._engine, self._opening, self._port = engine, opening, port
        self._shape = opening.shape
        self._sent = 0  # nodes
        self._drafted: tuple[int, ...] = ()  # in their tokens, as far as it lies ahead of the text
        self._session: Session
        self._unread: Unread  # own tokens to be fed
        mirror = engine.mirrors.find(opening.context)
        self._mirror, self._own = mirror.said(opening.context.tokens, engine.translation)
        self._begun = bool(self._own)  # or else the opening is half a character

    def run(self) -> Job:
        """Draft behind the opening, and behind facts; raises StaleTurn, Busy, Internal."""
        context, sessions = self._opening.context, self._engine.sessions
        if not self._fits:
            self._emit(epoch=context.epoch, held=context.base)
            while not self._opening.once:
                yield Waiting(self._ready)
            return
        own, client = tuple(self._own), self._mirror.client
        inner = replace(context, base=0, tokens=own, epoch=0, client=client)
        with sessions.extended(inner, 0) as self._session:
            self._unread = Unread(sessions, self._session, context)
            segment = behind(self._session, own[self._session.length :])
            logits = yield from sessions.feed(inner, segment)
            sessions.keep(self._session, inner, ())
            while True:
                yield from self._draft(logits)
                if self._opening.once:
                    mirror = replace(self._mirror, epoch=self._session.epoch)
                    self._engine.mirrors.keep(context.session_id, mirror)
                    return
                known = False
                while not known:
                    logits = yield from self._unread.feed(Waiting(self._ready))
                    known = self._unread.read()

    def _ready(self) -> Segment | None:
        """Own tokens behind which a chain is wanted."""
        if tokens := news(self._port.inbox, len(self._mirror.theirs)):
            self._mirror, self._own = self._mirror.said(tokens, self._engine.translation)
            accepted = all(a == b for a, b in zip(self._drafted, tokens, strict=False))
            if self._drafted:
                self._shape = adapted(self._shape, accepted)
            self._drafted = self._drafted[len(tokens) :] if accepted and self._fits else ()
            if not self._fits:
                self._emit()
            elif self._opening.lockstep or len(self._drafted) < ENOUGH:
                self._rewind()
        return self._unread.next() if self._fits and self._unread.pending else None

    @property
    def _levels(self) -> int:
        return min(self._shape.levels, self._shape.nodes)

    @property
    def _fits(self) -> bool:
        """Whether there is room for a chain behind our own words."""
        end = len(self._own) + self._levels + SPARE
        return self._begun and self._levels > 0 and end <= self._engine.sessions.context_length

    def _rewind(self) -> None:
        """Of what the session holds, keep what the text in our own words begins with; its newest
        token is always fed.
        """
        held = self._session.tokens
        count = min(shared(held, self._own), len(self._own) - 1)
        del held[count:]
        self._unread.pending, self._drafted = self._own[count:].tolist(), ()

    def _draft(self, logits: torch.Tensor) -> Generator[Offer, torch.Tensor, None]:
        """Send a chain. The session keeps what was fed of it: the text may go on so."""
        session, sessions = self._session, self._engine.sessions
        greedy = self._opening.sampling.rule is Rule.TOP1
        chain = Chain(self._shape, 0.0 if greedy else self._opening.sampling.temperature)
        sessions.reserve(session, len(self._own) + self._levels + SPARE)
        fed = 0
        while chain.add(logits[0, : self._engine.tokens]) and not self._reaches(chain):
            newest, parents = chain.tokens[-1:], tree.chain(len(chain.tokens))
            segment = Segment(session.room, session.length, tuple(newest), parents, wanted=1)
            logits = yield from self._unread.feed(segment)
            fed += 1
        sessions.advance(session, chain.tokens[:fed], range(fed))
        self._drafted = tuple(self._theirs(chain)[: self._levels])
        self._emit(chain, session.epoch, len(self._mirror.theirs))

    def _reaches(self, chain: Chain) -> bool:
        """Whether a chain has the levels asked for, or cannot go on."""
        count = len(chain.tokens)
        return (
            count == self._levels + SPARE
            or self._engine.translation.is_special(chain.tokens[-1])
            or (count >= self._levels and len(self._theirs(chain)) >= self._levels)
        )

    def _theirs(self, chain: Chain) -> list[int]:
        return self._engine.translation.to_theirs(self._mirror.theirs, chain.tokens)

    def _emit(self, chain: Chain | None = None, epoch: int = 0, held: int = 0) -> None:
        """Send what was drafted."""
        tokens, first = self._drafted, self._sent + 1
        self._sent += len(tokens)
        guess = Guess(
            len(self._mirror.theirs),
            tokens,
            (0, *range(first, self._sent))[: len(tokens)],
            chain.gains(len(tokens)) if chain else (),
            first,
            self._opening.context.turn,
        )
        once = self._opening.once
        self._port.emit(replace(guess, epoch=epoch, cached_len=held) if once else guess)
