"""Decoding one session: a job that steps whenever it can and takes the guesses that came in time.

Each step feeds the root, the newest token, and as many guessed nodes as pay; walks them; and
reports the tokens that it found. In lockstep each step waits for one guess and verifies all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from engine.cache.session import Session
from engine.cache.sessions import Sessions
from engine.forward.segment import Segment
from engine.sampling.drawing import Adjustment
from engine.schedule.port import Port
from engine.schedule.task import Job
from protos import tree
from protos.errors import Busy, InvalidRequest
from protos.streams import Decoding, Fact, Guess
from protos.types import NO_DRAFT, Draft, TokenLogprobs
from protos.wire.drafting import draft_of
from verifier_service.acceptance import walk
from verifier_service.guesses import Guesses, Trust
from verifier_service.judge import Judge
from verifier_service.lookup import Lookup
from verifier_service.punctuality import Punctuality
from verifier_service.together import answer


def judge_together(fed: Sequence[tuple[object, torch.Tensor]]) -> None:
    """Judge the drafts of all decoding jobs of a step in one go, before any of them goes on."""
    answer([offer.judged(rows) for offer, rows in fed if isinstance(offer, Decode) and len(rows)])


@dataclass(slots=True, eq=False)
class Decode:
    """One opening of a session, as an offer and the job that makes it."""

    sessions: Sessions
    opening: Decoding
    port: Port[Guess, Fact]
    trust: Trust
    clock: Callable[[], float]
    guesses: Guesses = field(init=False)
    session: Session = field(init=False)
    adjustment: Adjustment = field(init=False)
    judge: Judge | None = None  # of what was fed, if that is known before the job goes on
    pending: tuple[int, ...] = ()  # committed tokens that were not fed
    draft: Draft = NO_DRAFT  # what the step verifies
    expected: float = 0.0  # nodes of it to be accepted
    verified: int = 0  # nodes, in all steps
    lookup: Lookup | None = None
    punctuality: Punctuality = field(default_factory=Punctuality)

    def run(self) -> Job:
        """Decode until the end; raises SessionMiss, StaleTurn, Busy, InvalidRequest, Internal."""
        context, sampling = self.opening.context, self.opening.sampling
        with self.sessions.extended(context, 0) as self.session:
            held = self.session.length
            text = self.session.committed(context)
            self.adjustment = Adjustment(sampling, text)
            self.pending, start = context.tokens[held - context.base :], context.length
            self.guesses = Guesses(start, min(self.opening.until, self.sessions.context_length))
            if self.opening.lookup.levels:
                self.lookup = Lookup(self.opening.lookup)
                self.lookup.extend(text)
            opened, finished = (self.session.epoch, held - context.base), False
            while not finished:
                self.draft, self.expected = NO_DRAFT, 0.0
                judge, self.judge = self.judged((yield self)), None
                if judge.broken:
                    raise self.sessions.overflowed(context)
                accepted, token = walk(self.draft.parents, judge.decide)
                fed = len(self.pending)
                path = tuple(self.draft.tokens[node] for node in accepted)
                order = (*range(fed), *(fed + node for node in accepted))
                self.sessions.advance(self.session, self.pending + path, order)
                tokens, finished = self._cut((*path, token), start)
                logprobs = judge.logprobs(accepted, token)[: len(tokens)]
                self._report(start, tokens, len(accepted), opened, logprobs, finished)
                self.adjustment.extend(tokens)
                self.pending, start = (token,), start + len(tokens)
                opened = (0, 0)

    def judged(self, logits: torch.Tensor) -> Judge:
        """What the target says of the draft, by what was fed: logits [1 + nodes, vocab]."""
        self.judge = self.judge or Judge(self.draft, self.opening.sampling, logits, self.adjustment)
        return self.judge

    def ready(self) -> Segment | None:
        """The newest tokens, and in lockstep the draft behind them; None while it waits."""
        length = self.session.length + len(self.pending)
        if self.opening.lockstep:
            if not self._found(length):
                return None
        elif self.port.paused:
            return None
        else:
            self._take()
        self.sessions.reserve(self.session, length + len(self.draft))
        return self._segment()

    def chances(self) -> Iterator[float]:
        """Of the guessed nodes."""
        return iter(()) if self.opening.lockstep else self.guesses.chances()

    def segment(self, rows: int) -> Segment:
        """With so many of them, or as there is memory for."""
        length = self.session.length + len(self.pending)
        try:
            self.sessions.reserve(self.session, length + rows)
        except Busy:
            rows = self.session.room.capacity - length
        self.draft, self.expected = self.guesses.draft(rows)
        return self._segment()

    def patience(self, now: float, step: float) -> float:
        """It may wait for a punctual drafter while more guesses are worth their time."""
        if self.opening.lockstep or self.lookup or self.port.paused:
            return 0.0
        self._take()
        return self.punctuality.left(now, step, *self.guesses.hope(self.trust.promise))

    def _segment(self) -> Segment:
        return Segment(
            room=self.session.room,
            context=self.session.length,
            tokens=self.pending + self.draft.tokens,
            parents=tree.hang(len(self.pending), self.draft.parents),
            wanted=1 + len(self.draft),
        )

    def _take(self) -> None:
        """Take in what has arrived, or look the text up while nothing has."""
        inbox = self.port.inbox
        while inbox:
            guess = inbox.popleft()
            self.guesses.add(guess, self.trust.log)
            if guess.tokens:
                self.punctuality.came(guess.behind, guess.arrived)
        if self.lookup and not self.guesses.root.children:
            self.guesses.add(self.lookup.guess(), self.trust.log)

    def _found(self, length: int) -> bool:
        """Whether the guess made behind exactly this length has come; it is the draft then. One
        that is no tree, or too deep, is none, unless it is all that was asked for.
        """
        inbox = self.port.inbox
        while inbox and inbox[0].behind != length:
            inbox.popleft()
        if not inbox:
            return False
        try:
            draft = draft_of(inbox[0])
            levels = max(tree.depths(draft.parents), default=-1) + 1
            self.sessions.check_room("draft.tokens", length + levels)
            self.draft = draft
        except InvalidRequest:
            if self.opening.once:
                raise
        return True

    def _cut(self, tokens: tuple[int, ...], start: int) -> tuple[tuple[int, ...], bool]:
        """The tokens up to the end of the text, and whether it is reached."""
        tokens = tokens[: self.opening.until - start]
        stops = self.opening.stop_token_ids
        end = next((place for place, token in enumerate(tokens) if token in stops), None)
        if end is not None:
            return tokens[: end + 1], True
        return tokens, self.opening.once or start + len(tokens) >= self.opening.until

    def _report(
        self,
        start: int,
        tokens: tuple[int, ...],
        accepted: int,
        opened: tuple[int, int],
        logprobs: tuple[TokenLogprobs, ...],
        finished: bool,
    ) -> None:
        """Say what a step found, and learn from it; `opened` is the epoch and the tokens found
        cached, said once.
        """
        guesses, drafted = self.guesses, len(self.draft)
        if not self.opening.lockstep:
            levels = max(tree.depths(self.draft.parents), default=-1) + 1
            self.trust.saw(self.expected, accepted, levels)
            if (likeliest := guesses.likeliest()) is not None:
                self.trust.turned_out(likeliest == tokens[0])
        guesses.advance(tokens)
        self.verified += drafted
        if self.lookup:
            self.lookup.extend(tokens)
        foreseen = guesses.root.children is not None
        self.punctuality.said(start + len(tokens), self.clock(), foreseen)
        self.port.emit(
            Fact(
                start=start,
                tokens=tokens,
                drafted=drafted,
                accepted=min(accepted, len(tokens)),
                epoch=opened[0],
                reused=opened[1],
                logprobs=logprobs,
                expected=self.expected,
                late=guesses.late,
                unused=max(0, guesses.arrived - self.verified) if finished else 0,
            )
        )
        guesses.late = 0
