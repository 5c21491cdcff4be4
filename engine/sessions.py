"""The session rule: keep `base` cached tokens, drop the rest, append.

Decides whether a call may touch a session and what its slab holds; used by the model thread alone,
so it needs no lock. A cache is a mirror that may be lost at any time: whoever is told SessionMiss
resends everything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch

from engine.kv import SlabCache
from engine.plan import Segment
from protos import tree
from protos.errors import Busy, Internal, InvalidRequest, SessionMiss, StaleTurn
from protos.types import Context

CHUNK = 256  # tokens of a context fed in one step


@dataclass(slots=True)
class Session:
    """What one slot holds: `length` committed tokens, as of `turn`.

    `epoch` is drawn when the session is opened. A call that builds on cached tokens names the epoch
    that it was answered with, so a late call that opens the session anew can never pass for the
    session that was lost.
    """

    slot: int
    epoch: int
    length: int
    turn: int
    used: float


def prefill(
    session: Session, context: Context
) -> Generator[Segment, torch.Tensor, tuple[int, tuple[int, ...]]]:
    """Feed a long context in chunks, so that no step grows with it; (tokens held then, the rest to
    feed).
    """
    base, tokens = context.base, context.tokens
    while len(tokens) > CHUNK:
        yield Segment(session.slot, base, tokens[:CHUNK], tree.chain(CHUNK), wanted=0)
        base, tokens = base + CHUNK, tokens[CHUNK:]
    return base, tokens


class Sessions:
    """All sessions of one cache. `clock` gives seconds; sessions idle for `ttl` of them are
    reclaimed.

    `new_epoch` gives a fresh random number, never 0, for each session that is opened.
    """

    def __init__(
        self,
        cache: SlabCache,
        context_length: int,
        new_epoch: Callable[[], int],
        ttl: float,
        clock: Callable[[], float],
    ) -> None:
        self.misses = 0
        self.stale = 0
        self.expired = 0
        self._cache = cache
        self._context_length = context_length
        self._new_epoch = new_epoch
        self._ttl = ttl
        self._clock = clock
        self._open: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def extend(self, context: Context) -> Session:
        """Apply the rule: the session afterwards holds exactly `context.base` tokens.

        Raises StaleTurn, SessionMiss, Busy, InvalidRequest; then nothing has changed.
        """
        self.check_room("context.tokens", context.length)
        session = self._open.get(context.session_id)
        if session and context.turn <= session.turn:
            self.stale += 1
            raise StaleTurn(f"turn {context.turn} of a session that is at turn {session.turn}")
        known = (session.epoch, session.length) if session else (0, 0)
        if context.epoch not in (0, known[0]) or context.base > (known[1] if context.epoch else 0):
            self.misses += 1
            raise SessionMiss(f"base {context.base} is not cached here")
        if session is None:
            session = self._admit(context.session_id)
        session.length, session.turn, session.used = context.base, context.turn, self._clock()
        return session

    def check_room(self, field: str, length: int) -> None:
        """Raise InvalidRequest if a session of `length` tokens would not fit."""
        if length > self._context_length:
            raise InvalidRequest.of(
                field, f"reach token {length}, above the context of {self._context_length}"
            )

    def feed(
        self, context: Context, segment: Segment
    ) -> Generator[Segment, torch.Tensor, torch.Tensor]:
        """Feed a segment of a call and return its logits.

        Where the model overflowed they are NaN: the session is closed, raises Internal.
        """
        logits = yield segment
        if logits.isnan().any():
            self.close(context.session_id)
            raise Internal("the model overflowed: its logits are not numbers")
        return logits

    def keep(self, session: Session, start: int, path: Sequence[int] = ()) -> int:
        """Keep the first `start` tokens and, moved behind them, the rows of a tree path; returns
        the length held.
        """
        self._cache.compact(session.slot, start, path)
        session.length = start + len(path)
        session.used = self._clock()
        return session.length

    def close(self, session_id: bytes) -> None:
        """Forget a session; closing twice, or one that was never open, is the same."""
        if session := self._open.pop(session_id, None):
            self._cache.give_back(session.slot)

    def expire(self, busy: Callable[[bytes], bool]) -> None:
        """Reclaim sessions idle for longer than their time to live, except those at work."""
        now = self._clock()
        for session_id, session in list(self._open.items()):
            if now - session.used > self._ttl and not busy(session_id):
                self.expired += 1
                self.close(session_id)

    def _admit(self, session_id: bytes) -> Session:
        if not self._cache.free:
            raise Busy(f"all {self._cache.slots} sessions are in use")
        session = self._open[session_id] = Session(
            self._cache.take(), self._new_epoch(), 0, 0, self._clock()
        )
        return session
