"""The session rule: keep `base` cached tokens, drop the rest, append; and whose memory goes when
there is not enough.

Decides whether a call may touch a session and what its room holds; used by the model thread alone,
so it needs no lock. A cache is a mirror that may be lost at any time: whoever is told SessionMiss
resends everything.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import torch

from engine.kv import BLOCK, Pool
from engine.plan import Segment
from engine.session import Counts, Session
from protos.errors import Busy, Internal, InvalidRequest, SessionMiss, StaleTurn
from protos.types import Context

SETTLED_SECONDS = 1.0  # without a call, until a session may be evicted for another
RETRY_SECONDS = 0.2  # that a call which finds no room is told to wait
CROWD_SECONDS = 0.02  # longer for every other call refused since a session was opened
LONGEST_RETRY_SECONDS = 5.0


class Sessions:
    """All sessions of one pool, at most `most` open ones. `clock` gives seconds; sessions idle for
    `ttl` of them are reclaimed, those idle for `settled` when another needs their room. `new_epoch`
    gives a fresh random number, never 0.
    """

    def __init__(
        self,
        pool: Pool,
        context_length: int,
        most: int,
        new_epoch: Callable[[], int],
        ttl: float,
        clock: Callable[[], float],
        settled: float = SETTLED_SECONDS,
    ) -> None:
        self.counts = Counts()
        self.most = most
        self._pool = pool
        self._context_length = context_length
        self._new_epoch = new_epoch
        self._ttl = ttl
        self._clock = clock
        self._settled = settled
        self._open: dict[bytes, Session] = {}
        self._refused = 0  # calls, since a session was opened

    def __len__(self) -> int:
        return sum(not session.retired for session in list(self._open.values()))  # any thread

    @property
    def usage(self) -> float:
        """The share of the pool that rooms take."""
        return self._pool.taken / self._pool.positions

    @contextmanager
    def extended(self, context: Context, nodes: int) -> Iterator[Session]:
        """Apply the rule: within the scope the session is at work and cannot be evicted. It holds
        the tokens to build on, `context.base` or more, and has room for the context and `nodes`
        tree nodes.

        Raises StaleTurn, SessionMiss, Busy, InvalidRequest; then nothing has changed.
        """
        self.check_room("context.tokens", context.length)
        session = self._extend(context, context.length + nodes)
        session.active = True
        try:
            yield session
        finally:
            session.active, session.used = False, self._clock()

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

        Where the model overflowed they are NaN: the session is dropped, raises Internal.
        """
        logits = yield segment
        if logits.isnan().any():
            self._drop(context.session_id)
            raise Internal("the model overflowed: its logits are not numbers")
        return logits

    def keep(
        self, session: Session, context: Context, drafted: Sequence[int], path: Sequence[int] = ()
    ) -> int:
        """Keep the context and, moved behind it, the nodes of a tree path, `drafted` being the
        tree's tokens; returns the length held.
        """
        self._pool.compact(session.room, context.length, path)
        del session.tokens[context.base :]
        session.tokens.extend(context.tokens)
        session.tokens.extend(drafted[node] for node in path)
        return session.length

    def close(self, session_id: bytes) -> None:
        """Forget a session; closing twice, or one that was never open, is the same. What a known
        client's session holds stays until its memory is wanted.
        """
        session = self._open.get(session_id)
        if session and session.client and session.length >= BLOCK:
            session.retired = True
        else:
            self._drop(session_id)

    def expire(self) -> None:
        """Reclaim sessions idle for longer than their time to live."""
        now = self._clock()
        for session_id, session in list(self._open.items()):
            if now - session.used > self._ttl and not session.active:
                self.counts.expired += not session.retired
                self._drop(session_id)

    def _extend(self, context: Context, length: int) -> Session:
        session = self._open.get(context.session_id)
        if session and context.turn <= session.turn:
            self.counts.stale += 1
            raise StaleTurn(f"turn {context.turn} of a session that is at turn {session.turn}")
        known = (session.epoch, session.length) if session and not session.retired else (0, 0)
        if context.epoch not in (0, known[0]) or context.base > (known[1] if context.epoch else 0):
            self.counts.misses += 1
            raise SessionMiss(f"base {context.base} is not cached here")
        self._make_room(length, session)
        if session is None:
            session = self._admit(context, length)
        else:
            self._pool.grow(session.room, length)
            del session.tokens[context.base :]
        if session.retired:
            session.epoch, session.retired = self._new_epoch(), False
        if not context.epoch:
            session.client = context.client
        session.turn, session.used = context.turn, self._clock()
        return session

    def _admit(self, context: Context, length: int) -> Session:
        """A new session; it starts with what another one of the same client holds already."""
        room = self._pool.take(length)
        assert room, "room was made"
        session = Session(room, self._new_epoch(), context.client)
        known = self._known(context)
        if known:
            donor, count = known
            self._pool.copy(donor.room, room, count)
            session.tokens.extend(context.tokens[:count])
            self.counts.reused_tokens += count
        self._open[context.session_id] = session
        return session

    def _make_room(self, length: int, session: Session | None) -> None:
        """Drop sessions until there is a place, and memory for `length` tokens, for this one, which
        may be open already. Closed ones go first, then those used least recently; nobody goes in
        vain. Raises Busy.
        """
        if session and not session.retired and session.room.capacity >= length:
            return
        now = self._clock()
        idle = {
            name: other
            for name, other in self._open.items()
            if other is not session
            and not other.active
            and (other.retired or now - other.used >= self._settled)
        }
        order = sorted(idle, key=lambda name: (not idle[name].retired, idle[name].used))
        open_ = [name for name in order if not idle[name].retired]
        surplus = len(self) + (session is None or session.retired) - self.most
        if surplus > len(open_):
            raise self._busy(f"all {self.most} sessions are in use")
        leaving = open_[: max(0, surplus)]
        order = leaving + [name for name in order if name not in leaving]
        rooms = [idle[name].room for name in order]
        own = [session.room] if session else []

        def enough(count: int) -> bool:
            return self._pool.fits(length, own + rooms[:count])

        count = bisect_left(range(len(rooms) + 1), True, lo=len(leaving), key=enough)
        if count > len(rooms):
            raise self._busy("no memory for a longer session" if own else "no memory for another")
        for name in order[:count]:
            self.counts.evicted += not idle[name].retired
            self._drop(name)
        self._refused = 0

    def _known(self, context: Context) -> tuple[Session, int] | None:
        """The session of the same client that shares the longest beginning, if it is worth a copy,
        and how many tokens of it to reuse: never all, the newest is always fed.
        """
        if not context.client or len(context.tokens) <= BLOCK:
            return None
        wanted = array("I", context.tokens[:-1])
        shared = [
            (session, session.shares(wanted))
            for session in self._open.values()
            if session.client == context.client and session.tokens[:BLOCK] == wanted[:BLOCK]
        ]
        return max(shared, key=lambda pair: pair[1], default=None)

    def _busy(self, why: str) -> Busy:
        wait = min(RETRY_SECONDS + CROWD_SECONDS * self._refused, LONGEST_RETRY_SECONDS)
        self._refused += 1
        return Busy(why, wait)

    def _drop(self, session_id: bytes) -> None:
        if session := self._open.pop(session_id, None):
            self._pool.give_back(session.room)
