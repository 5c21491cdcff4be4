"""Drafting for a target with another tokenizer: translate its text, draft a chain, translate back.

A job for the model thread. The engine's session holds tokens of the draft model; the target's
tokens, which callers count, are in a `TargetText`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import torch

from tandem.drafter_service.foreign.target_text import TargetTexts
from tandem.drafter_service.foreign.translation import Translation
from tandem.drafter_service.tree.expansion import LOGIT_ERROR
from tandem.drafter_service.tree.pending import PendingTokens, chain_segment
from tandem.drafter_service.tree.session_text import FactTokens, new_tokens
from tandem.drafter_service.tree.token_tree import adapted
from tandem.drafter_service.tree.waiting_input import WaitingInput
from tandem.engine.cache.session import Session
from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.forward.step_input import StepInput
from tandem.engine.schedule.job_stream import JobStream
from tandem.engine.schedule.task import Job
from tandem.protos import tree
from tandem.protos.streams import Drafting, Guess
from tandem.protos.types import DraftShape, Rule

LONGEST = 8  # times the draft model's context: an opening of more tokens is not translated
SPARE = 4  # tokens beyond the levels asked for: a word may take more of them than of the target's
LEAST_LEFT = 2  # tokens of a chain that are left, with which no other is drafted
LEAST_CHANCE = 0.2  # no token is drafted after one that is accepted with less: of a chain of 4, at
# temperature 0, 1.47 are accepted instead of 1.53, for 3.4 steps instead of 4.1; of one of 8, 1.64
# of 1.81 for 4.1 of 8.4


@dataclass(frozen=True, slots=True)
class ChainSetup:
    """What chains are made with; `tokens` of the draft model's vocabulary are the tokenizer's."""

    sessions: Sessions
    translation: Translation
    texts: TargetTexts
    tokens: int


@dataclass(slots=True)
class Chain:
    """A growing chain of the draft model's tokens: `chances` are those of each and all before it to
    be accepted.
    """

    shape: DraftShape
    temperature: float
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def add(self, logits: torch.Tensor) -> bool:
        """Add the likeliest token of [vocab]; returns whether to draft after it."""
        likely = (logits / math.hypot(self.temperature, LOGIT_ERROR)).softmax(-1)
        self.tokens.append(int(likely.argmax()))
        self.chances.append(float(likely.max()) * (self.chances[-1] if self.chances else 1.0))
        return self.chances[-1] >= LEAST_CHANCE and self._is_confident(logits)

    def gains(self, count: int) -> tuple[float, ...]:
        """The log-probabilities of the same text as `count` tokens, each to be
        accepted if the one before it is.
        """
        length = len(self.tokens)
        ends = [math.log(self.chances[-(-length * n // count) - 1]) for n in range(1, count + 1)]
        return tuple(end - before for end, before in zip(ends, [0.0, *ends], strict=False))

    def _is_confident(self, logits: torch.Tensor) -> bool:
        """Whether the draft model itself finds its likeliest token likely enough."""
        least = self.shape.confidence
        warm = logits / (self.temperature or 1.0)
        return not least or float(warm.softmax(-1).max()) >= least


class ChainJob:
    """The chains of one opening. Where the translated text does not fit into the draft model's
    context, they are empty; if the opening's does not, all are. Raises SessionMiss.
    """

    def __init__(
        self, engine: ChainSetup, opening: Drafting, stream: JobStream[FactTokens, Guess]
    ) -> None:
        self._engine, self._opening, self._stream = engine, opening, stream
        self._shape = opening.shape
        self._sent = 0  # nodes
        self._drafted: tuple[int, ...] = ()  # in their tokens, as far as it lies ahead of the text
        self._session: Session
        self._pending: PendingTokens  # own tokens to be fed
        self._text = engine.texts.find(opening.context)
        self._draft_tokens = array("I")
        self._possible = opening.context.length <= LONGEST * engine.sessions.context_length
        self._extend(opening.context.tokens)
        self._possible = bool(self._draft_tokens) and self._fits  # half a character is no text

    def run(self) -> Job:
        """Draft after the opening, and after facts; raises StaleTurn, Busy, Internal."""
        context, sessions = self._opening.context, self._engine.sessions
        if not self._fits:
            self._emit(epoch=context.epoch, held=context.base)
            while not self._opening.once:
                yield WaitingInput(self._ready)
            return
        draft_tokens, client = tuple(self._draft_tokens), self._text.client
        inner = replace(context, base=0, tokens=draft_tokens, epoch=0, client=client)
        with sessions.acquire(inner, 0) as self._session:
            self._pending = PendingTokens(sessions, self._session, context)
            segment = chain_segment(self._session, draft_tokens[self._session.length :])
            logits = yield from sessions.feed(inner, segment)
            sessions.keep(self._session, inner, ())
            while True:
                yield from self._draft(logits)
                if self._opening.once:
                    text = replace(self._text, epoch=self._session.epoch)
                    self._engine.texts.keep(context.session_id, text)
                    return
                known = False
                while not known:
                    logits = yield from self._pending.feed(WaitingInput(self._ready))
                    known = self._pending.read()

    def _ready(self) -> Segment | None:
        """Own tokens after which a chain is wanted."""
        if tokens := new_tokens(self._stream.inbox, len(self._text.tokens)):
            self._extend(tokens)
            accepted = all(a == b for a, b in zip(self._drafted, tokens, strict=False))
            if self._drafted:
                self._shape = adapted(self._shape, accepted)
            self._drafted = self._drafted[len(tokens) :] if accepted and self._fits else ()
            if not self._fits:
                self._emit()
            elif self._opening.lockstep or len(self._drafted) < LEAST_LEFT:
                self._rewind()
        if self._stream.paused or not (self._fits and self._pending.pending):
            return None
        return self._pending.next()

    @property
    def _levels(self) -> int:
        return min(self._shape.levels, self._shape.nodes)

    @property
    def _fits(self) -> bool:
        """Whether the context has space for a chain after the translated text, as it had after the
        opening's.
        """
        end = len(self._draft_tokens) + self._levels + SPARE
        return self._possible and self._levels > 0 and end <= self._engine.sessions.context_length

    def _extend(self, tokens: Sequence[int]) -> None:
        """Take in committed tokens of the target."""
        if self._possible:
            self._text, self._draft_tokens = self._text.extended(tokens, self._engine.translation)
        else:
            self._text = replace(self._text, tokens=self._text.tokens + array("I", tokens))

    def _rewind(self) -> None:
        """Of what the session holds, keep the prefix that it shares with the translated text, whose
        newest token is always fed.
        """
        held = self._session.common_prefix_with(self._draft_tokens[:-1])
        count = self._engine.sessions.cut(self._session, held)
        self._pending.pending, self._drafted = self._draft_tokens[count:].tolist(), ()

    def _draft(self, logits: torch.Tensor) -> Generator[StepInput, torch.Tensor, None]:
        """Send a chain. The session keeps what was fed of it: the text may go on so."""
        session, sessions = self._session, self._engine.sessions
        greedy = self._opening.sampling.rule is Rule.TOP1
        chain = Chain(self._shape, 0.0 if greedy else self._opening.sampling.temperature)
        sessions.reserve(session, len(self._draft_tokens) + self._levels + SPARE)
        fed = 0
        while chain.add(logits[0, : self._engine.tokens]) and not self._reaches(chain):
            newest, parents = chain.tokens[-1:], tree.chain(len(chain.tokens))
            segment = Segment(session.table, session.length, tuple(newest), parents, wanted=1)
            logits = yield from self._pending.feed(segment)
            fed += 1
        sessions.advance(session, chain.tokens[:fed], range(fed), guessed=fed)
        self._drafted = tuple(self._target_tokens(chain)[: self._levels])
        self._emit(chain, session.epoch, len(self._text.tokens))

    def _reaches(self, chain: Chain) -> bool:
        """Whether a chain has the levels asked for, or cannot go on."""
        count = len(chain.tokens)
        return (
            count == self._levels + SPARE
            or self._engine.translation.is_special(chain.tokens[-1])
            or (count >= self._levels and len(self._target_tokens(chain)) >= self._levels)
        )

    def _target_tokens(self, chain: Chain) -> list[int]:
        return self._engine.translation.to_target(self._text.tokens, chain.tokens)

    def _emit(self, chain: Chain | None = None, epoch: int = 0, held: int = 0) -> None:
        """Send what was drafted."""
        tokens, first = self._drafted, self._sent + 1
        self._sent += len(tokens)
        guess = Guess(
            len(self._text.tokens),
            tokens,
            (0, *range(first, self._sent))[: len(tokens)],
            chain.gains(len(tokens)) if chain else (),
            first,
            self._opening.context.turn,
        )
        once = self._opening.once
        self._stream.emit(replace(guess, epoch=epoch, cached_len=held) if once else guess)
