"""Drafting for a target that speaks another tokenizer's tokens: mirror, translate, draft a chain,
translate back.

A job for the model thread. The engine's session holds our own tokens; what the caller believes to
be cached are theirs, and a mirror of them stands for it. Both live and end together, so a lost
session is a SessionMiss like any other.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import torch

from drafter_service.guesses import LOGIT_ERROR
from drafter_service.translation import Translation
from engine.plan import Segment
from engine.session import shared
from engine.sessions import Sessions
from protos import tree
from protos.errors import SessionMiss
from protos.types import NO_DRAFT, Context, Draft, DraftShape, Proposal, Rule, SamplingParams

TAIL = 32  # their newest tokens, at least, that are translated anew in every call
SPARE = 4  # own tokens beyond the levels asked for: a word may take more of ours than of theirs
DOUBT = 0.2  # nobody looks behind a token that stands with less: of a chain of 4 at temperature 0,
# 1.47 stand instead of 1.53, for 3.4 steps instead of 4.1; of one of 8, 1.64 of 1.81 for 4.1 of 8.4


def _none() -> array[int]:
    return array("I")


@dataclass(frozen=True, slots=True)
class Mirror:
    """What a session stands for: `theirs`, the committed tokens; the first `settled` of them are
    `head` in our own words for good; `held` are the own tokens in the engine's session.
    """

    theirs: array[int] = field(default_factory=_none)
    settled: int = 0
    head: array[int] = field(default_factory=_none)
    held: array[int] = field(default_factory=_none)

    def cut(self, base: int) -> Mirror:
        """The first `base` of their tokens."""
        known = self if base >= self.settled else Mirror(held=self.held)
        return replace(known, theirs=self.theirs[:base])

    def said(self, tokens: Sequence[int], translation: Translation) -> tuple[Mirror, array[int]]:
        """With more of their tokens; and all of them in our own words, of which only the tail is
        translated anew.
        """
        theirs = self.theirs + array("I", tokens)
        settled, head, tail = self.settled, self.head, theirs[self.settled :]
        border = translation.border(tail, near=TAIL) if len(tail) > 2 * TAIL else 0
        if len(tail) > 4 * TAIL and not border:  # a language that writes no spaces
            border = translation.character(tail, near=TAIL)
        if border:
            head = head + array("I", translation.to_own(tail[:border], opening=not settled))
            settled, tail = settled + border, tail[border:]
        own = head + array("I", translation.to_own(tail, opening=not settled))
        return replace(self, theirs=theirs, settled=settled, head=head), own


class Mirrors:
    """The mirrors of at most `most` sessions; the one used least recently goes for another."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[bytes, Mirror] = {}  # in the order of their last use

    def __len__(self) -> int:
        return len(self._known)

    def find(self, context: Context) -> Mirror:
        """The mirror that a call builds on; raises SessionMiss."""
        mirror = self._known.get(context.session_id) if context.epoch else Mirror()
        if mirror is None or context.base > len(mirror.theirs):
            raise SessionMiss(f"base {context.base} is not mirrored here")
        return mirror

    def keep(self, session_id: bytes, mirror: Mirror) -> None:
        """Remember a session as used just now."""
        self._known.pop(session_id, None)
        self._known[session_id] = mirror
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]

    def close(self, session_id: bytes) -> None:
        """Forget a session; unknown ones are no error."""
        self._known.pop(session_id, None)


@dataclass(slots=True)
class Chain:
    """A growing chain of our own tokens: `stands` is the chance that all of them do, `expected` how
    many should.
    """

    shape: DraftShape
    temperature: float
    tokens: list[int] = field(default_factory=list)
    stands: float = 1.0
    expected: float = 0.0

    def add(self, logits: torch.Tensor) -> bool:
        """Add the likeliest token of [vocab], if it is worth it; says whether to look behind it."""
        likely = (logits / math.hypot(self.temperature, LOGIT_ERROR)).softmax(-1)
        chance = min(1.0, float(likely.max()) * self.shape.trust)
        if self.stands * chance < self.shape.worth:
            return False
        self.tokens.append(int(likely.argmax()))
        self.stands *= chance
        self.expected += self.stands
        promise = self.stands * chance - self.shape.worth  # as much may be lost again
        return (
            self.stands >= DOUBT
            and self._is_confident(logits)
            and promise >= self.shape.level_worth
        )

    def _is_confident(self, logits: torch.Tensor) -> bool:
        """Whether the draft model itself finds its likeliest token likely enough."""
        least = self.shape.confidence
        warm = logits / (self.temperature or 1.0)
        return not least or float(warm.softmax(-1).max()) >= least


def propose(
    sessions: Sessions,
    context: Context,
    shape: DraftShape,
    params: SamplingParams,
    token_count: int,
    translation: Translation,
    mirrors: Mirrors,
) -> Generator[Segment, torch.Tensor, Proposal]:
    """Yields a segment per level, takes their logits, returns a chain in their tokens.

    `context` counts their tokens, `token_count` is of our own vocabulary. Where our words do not
    fit into the draft model's context there is no draft, and nothing changes.
    Raises SessionMiss, StaleTurn, Busy.
    """
    before = mirrors.find(context)
    after, own = before.cut(context.base).said(context.tokens, translation)
    levels = min(shape.levels, shape.nodes)
    steps = levels + SPARE
    if not (own and levels and len(own) + steps <= sessions.context_length):
        return Proposal(NO_DRAFT, context.base, context.epoch)
    base = min(shared(before.held, own), len(own) - 1) if context.epoch else 0
    inner = replace(context, base=base, tokens=tuple(own[base:]))
    chain, fed = Chain(shape, 0.0 if params.rule is Rule.TOP1 else params.temperature), 0
    with sessions.extended(inner, steps) as session:
        # what the job leaves behind if it ends early, as the session does
        mirrors.keep(context.session_id, replace(before.cut(context.base), held=own[:base]))
        tokens = inner.tokens[session.length - base :]
        segment = Segment(session.room, session.length, tokens, tree.chain(len(tokens)), wanted=1)
        logits = yield from sessions.feed(inner, segment)
        sessions.keep(session, inner, ())
        while chain.add(logits[0, :token_count]):
            newest, count = chain.tokens[-1], len(chain.tokens)
            if count == steps or translation.is_special(newest):
                break
            if count >= levels and len(translation.to_theirs(after.theirs, chain.tokens)) >= levels:
                break
            segment = Segment(session.room, inner.length, (newest,), tree.chain(count), wanted=1)
            logits = yield from sessions.feed(inner, segment)
            fed = count
        sessions.keep(session, inner, chain.tokens, range(fed))
        held = own + array("I", chain.tokens[:fed])
        mirrors.keep(context.session_id, replace(after, held=held))
    draft = tuple(translation.to_theirs(after.theirs, chain.tokens)[:levels])
    expected = min(chain.expected, float(len(draft)))
    return Proposal(Draft.chain(draft), context.length, session.epoch, expected)
