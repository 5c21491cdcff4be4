"""How facts and guesses cross: the verifier's facts go to the drafter and to the reader, the
drafter's guesses to the verifier.

Read this file first. Events come in as plain calls, and what they cause are plain calls too:
nothing waits here. The verifier decodes by itself, so a drafter that is missing, slow or wrong is
no case of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import structlog

from orchestrator.rounds.generation import Finish, Generation
from orchestrator.rounds.opening import Alarm, Line, Side, Timer
from protos.errors import Busy, SessionMiss, TandemError, is_transient
from protos.streams import Decoding, Drafting
from protos.tandem.v1 import common_pb2, verifier_pb2
from protos.types import NO_DRAFT_SHAPE, DraftShape, Method, Rule
from protos.wire import codec

PAUSE_AT, RESUME_AT = 64, 16  # steps that the reader has not taken
VERIFIER_PAUSES = (0.05, 1.0)  # seconds before it is opened again: least, most
DRAFTER_PAUSES = (0.2, 2.0)
PATIENCE_SECONDS = 30.0  # with a verifier that is away
BUSY_SECONDS = 600.0  # with one that is there and asks to wait
LOCKSTEP_SECONDS = (0.05, 2.0)  # that are waited for a drafter in lockstep: least, most
LARGEST_GUESS = 256 << 10  # bytes; a whole tree with all that it was drawn from is smaller

FactMessage: TypeAlias = common_pb2.Fact
GuessMessage: TypeAlias = common_pb2.Guess
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Services:
    """What all crossings of a worker share; `numbers` are their streams'."""

    verifier: Line
    drafter: Line
    timer: Timer
    numbers: Iterator[int]


@dataclass(frozen=True, slots=True)
class Step:
    """What a fact has committed, and the seconds since the one before, or since the opening."""

    tokens: tuple[int, ...]
    fact: FactMessage
    seconds: float
    finish: Finish | None


class Crossing:
    """One generation's; `changed` is called when there are steps to take, or none will come."""

    def __init__(
        self,
        generation: Generation,
        shape: DraftShape,
        request_id: str,
        services: Services,
        changed: Callable[[], None],
    ) -> None:
        self.generation, self.steps = generation, deque[Step]()
        self.ended = False
        self.error: TandemError | None = None
        self._shape, self._request_id, self._changed = shape, request_id, changed
        self._numbers, self._timer = services.numbers, services.timer
        looked_up = shape.method is Method.NGRAM
        self._lookup = shape if looked_up else NO_DRAFT_SHAPE
        self._drafts = shape.levels > 0 and not looked_up
        self._lockstep = self._drafts and generation.sampling.rule is not Rule.MATCH
        self._paused = self._begun = False
        self._alarm: Alarm | None = None
        self._allowed = LOCKSTEP_SECONDS[1]
        self._last = self._timer.now()
        self.verifier = Side(
            services.verifier, self._timer, self._decode, self._fact, self._verifier_ended
        )
        self.drafter = Side(
            services.drafter, self._timer, self._draft, self._guess, self._drafter_ended
        )
        self.verifier.line.join(self.verifier)
        if self._drafts:
            self.drafter.line.join(self.drafter)
        self._decode()
        if self._lockstep:
            self._overdue()

    def take(self) -> Step:
        """The oldest step."""
        step = self.steps.popleft()
        if self._paused and len(self.steps) < RESUME_AT:
            self._pause(False)
        return step

    def end(self, error: TandemError | None = None) -> None:
        """Have both services forget the session."""
        if self.ended:
            return
        self.ended, self.error = True, error
        if self._alarm:
            self._alarm.cancel()
        self.verifier.leave(self.generation.session_id)
        self.drafter.leave(self.generation.session_id)
        self._changed()

    def _decode(self) -> None:
        """Open the verifier, and the drafter anew: its guesses refer to what this very decoding
        was sent. The drafter is opened at the first fact: it may share a machine with the verifier,
        and must not delay the first token.
        """
        if not self.verifier.line.connected:
            self.verifier.lost()
            return
        opening = Decoding(
            self.generation.context(),
            self.generation.sampling,
            self.generation.until,
            self.generation.stop_token_ids,
            self._lockstep,
            lookup=self._lookup,
        )
        message = codec.encode_decoding(next(self._numbers), opening)
        message.request_id = self._request_id
        self._paused, self._begun = False, self._lockstep
        self.verifier.begin(message)
        self._draft()
        self._unassisted()

    def _draft(self) -> None:
        """Open the drafter."""
        self.drafter.stop()
        ready = self._begun and self.verifier.stream
        if not (self._drafts and ready and self.drafter.line.connected):
            return
        opening = Drafting(
            self.generation.context(), self.generation.sampling, self._shape, self._lockstep
        )
        message = codec.encode_drafting(next(self._numbers), opening)
        message.request_id = self._request_id
        self.drafter.begin(message)

    def _unassisted(self) -> None:
        """In lockstep the verifier waits for a guess: without a drafter it gets an empty one."""
        if self._lockstep and not self.drafter.stream:
            self.verifier.send("guesses", GuessMessage(behind=self.generation.length))

    def _overdue(self, behind: int = 0) -> None:
        """Called now and then in lockstep, with the length at the last time. The verifier does not
        wait for ever, and ever less for a drafter that keeps it waiting.
        """
        length = self.generation.length
        if length == behind:
            self.verifier.send("guesses", GuessMessage(behind=length))
            self._allowed = max(LOCKSTEP_SECONDS[0], self._allowed / 2)
        self._alarm = self._timer.later(self._allowed, partial(self._overdue, length))

    def _fact(self, fact: FactMessage) -> None:
        """The verifier has made a step."""
        now = self._timer.now()
        tokens = self.generation.extend(fact.start, fact.tokens)
        self.steps.append(Step(tokens, fact, now - self._last, self.generation.finish))
        self._last = now
        if self.generation.finish:
            self.end()
            return
        if not self._begun:
            self._begun = True
            self._draft()
        elif self.drafter.stream:
            self.drafter.send("facts", FactMessage(start=fact.start, tokens=fact.tokens))
        else:
            self._unassisted()
        if not self._paused and len(self.steps) > PAUSE_AT:
            self._pause(True)
        self._changed()

    def _guess(self, guess: GuessMessage) -> None:
        """The drafter has guessed."""
        if guess.ByteSize() <= LARGEST_GUESS:
            self.verifier.send("guesses", guess)
            if guess.behind == self.generation.length:
                self._allowed = LOCKSTEP_SECONDS[1]

    def _pause(self, paused: bool) -> None:
        """The reader is too far behind, or no more."""
        self._paused = paused
        self.verifier.send("flows", verifier_pb2.Flow(paused=paused))

    def _verifier_ended(self, error: TandemError) -> None:
        """Open it again while there is hope; time in which it was open does not count."""
        asked = error.retry_after if isinstance(error, Busy) else 0.0
        hope = BUSY_SECONDS if asked else PATIENCE_SECONDS
        if _passes(error) and self.verifier.waited < hope:
            self.verifier.again(*VERIFIER_PAUSES, asked)
        else:
            self.end(error)

    def _drafter_ended(self, error: TandemError) -> None:
        """Open it again in a while, unless it will never do."""
        if _passes(error):
            asked = error.retry_after if isinstance(error, Busy) else 0.0
            self.drafter.again(*DRAFTER_PAUSES, asked)
        else:
            log.warning("no guesses", problem=str(error), request_id=self._request_id)
            self._drafts = False
        self._unassisted()


def _passes(error: TandemError) -> bool:
    """Whether the same opening may succeed a little later."""
    return isinstance(error, SessionMiss) or is_transient(error)
