"""The session rule: a call keeps the first `base` cached tokens and replaces all later tokens.

`Sessions` decides whether a call may use a session, and which tokens the session's pages hold. Only
the model thread uses this class, so it needs no lock. Cached tokens may be lost at any time: a
caller that gets SessionMiss sends all tokens again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from tandem.engine.cache.eviction import evictable, to_evict
from tandem.engine.cache.kv_cache import KVCache
from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.session import JobEnded, Session, SessionCounts
from tandem.protos.errors import Busy, Internal, InvalidRequest, SessionMiss, StaleTurn
from tandem.protos.types import LAST_TURN, Context

Fed = TypeVar("Fed")  # the type of a step input
IDLE_SECONDS = 5.0  # seconds without a call after which a session may be evicted
RETRY_SECONDS = 0.2  # seconds after which a call that finds no memory may be retried
RETRY_STEP_SECONDS = 0.02  # added to the retry delay for each consecutive refused call
LONGEST_RETRY_SECONDS = 5.0


class Sessions:
    """The open sessions of one pool, at most `max_sessions`. A session is reclaimed after `ttl`
    idle seconds, or after `evict_after` idle seconds if another session needs its memory. `clock`
    returns seconds, and `new_epoch` returns a random nonzero number.
    """

    def __init__(
        self,
        pool: KVCache,
        context_length: int,
        max_sessions: int,
        new_epoch: Callable[[], int],
        ttl: float,
        clock: Callable[[], float],
        evict_after: float = IDLE_SECONDS,
    ) -> None:
        self.counts = SessionCounts()
        self.max_sessions = max_sessions
        self.context_length = context_length
        self._pool = pool
        self._prefixes = pool.prefixes
        self._new_epoch = new_epoch
        self._ttl = ttl
        self._clock = clock
        self._evict_after = evict_after
        self._open: dict[bytes, Session] = {}
        self._refused = 0  # number of calls refused in a row

    def __len__(self) -> int:
        return len(self._open)

    @property
    def usage(self) -> float:
        """The fraction of the pool's memory that sessions use."""
        return max(0, self._pool.allocated - self._prefixes.idle) / self._pool.size

    @property
    def prefix_usage(self) -> float:
        """The fraction of the pool's memory that only caches prefixes and is freed when needed."""
        return self._prefixes.idle / self._pool.size

    @contextmanager
    def acquire(self, context: Context, nodes: int) -> Iterator[Session]:
        """Open the session of a call, or continue it from the call's base. Inside this context, the
        session is not evicted, holds at least the first `context.base` tokens, and has memory for
        the context and `nodes` tree nodes. Raises StaleTurn, SessionMiss, Busy, InvalidRequest. A
        session that gets no memory is closed, because growing sessions could otherwise wait for
        each other's memory. The tokens of a closed session stay cached.
        """
        self.check_length("context.tokens", context.length)
        session = self._extend(context, context.length + nodes)
        session.active = True
        try:
            yield session
        except BaseException as error:
            fed = error.fed if isinstance(error, JobEnded) else 0
            if fed > session.length and self._pool.finite(session.table, session.length, fed):
                session.tokens = session.committed(context)[:fed]
                session.settled = fed
            if isinstance(error, Busy) or not session.length:  # an empty session has no use
                self._drop(context.session_id)
            raise
        finally:
            session.active, session.used = False, self._clock()

    def check_length(self, field: str, length: int) -> None:
        """Raise InvalidRequest if `length` tokens exceed the context length."""
        if length > self.context_length:
            limit = f"reach token {length}, above the context length {self.context_length}"
            raise InvalidRequest.of(field, limit)

    def feed(self, context: Context, step_input: Fed) -> Generator[Fed, torch.Tensor, torch.Tensor]:
        """Yield a step input and return its logits. Raises Internal if the model overflowed."""
        logits = yield step_input
        if logits.numel() and logits.amax().isnan():  # the maximum is NaN if any logit is NaN
            raise self.overflowed(context)
        return logits

    def overflowed(self, context: Context) -> Internal:
        """Drop a session whose logits are NaN, and stop caching the tokens that only this session
        holds. Returns the error for the caller to raise.
        """
        if session := self._open.get(context.session_id):
            self._prefixes.forget(session)
        self._drop(context.session_id)
        return Internal("the model overflowed: its logits are NaN")

    def keep(
        self, session: Session, context: Context, drafted: Sequence[int], path: Sequence[int] = ()
    ) -> int:
        """Keep the context's tokens in the session, followed by the tree nodes on `path`. `drafted`
        lists the tokens of all tree nodes. Returns how many tokens the session holds afterwards.
        """
        new = context.tokens[session.length - context.base :]
        order = (*range(len(new)), *(len(new) + node for node in path))
        self.advance(session, (*new, *(drafted[node] for node in path)), order, len(path))
        return session.length

    def advance(
        self, session: Session, tokens: Sequence[int], order: Sequence[int], proposed: int = 0
    ) -> None:
        """Append tokens to a session. The keys and values of token i are at position
        `session.length + order[i]`, and are moved to `session.length + i`. Keys and values of
        further entries of `order` are moved, too, but no tokens are appended for them. The last
        `proposed` tokens are not committed, so no other session reuses them.
        """
        self._pool.compact(session.table, session.length, order)
        session.tokens.extend(tokens)
        session.settled = session.length - proposed
        self._prefixes.publish(session)

    def cut(self, session: Session, length: int) -> int:
        """Truncate a session to at most `length` tokens; return how many tokens are left."""
        self._prefixes.cut(session, length)
        return session.length

    def reserve(self, session: Session, length: int) -> None:
        """Allocate memory for `length` tokens of a running session. Raises Busy if memory is short,
        which ends the session. The caller checks that `length` is not above the context length.
        """
        if why := self._find_memory(length, session):
            raise self._busy(why)

    def try_reserve(self, session: Session, length: int) -> bool:
        """Allocate memory for `length` tokens of a session; return whether this succeeded."""
        return not self._find_memory(length, session)

    def close(self, session_id: bytes, turn: int = LAST_TURN) -> None:
        """Close a session, unless it is at a newer turn than `turn`. Closing a session that is not
        open does nothing. The session's tokens stay cached until the memory is needed.
        """
        session = self._open.get(session_id)
        if not session or session.turn <= turn:
            self._drop(session_id)

    def expire(self, waiting: Iterable[bytes] = ()) -> None:
        """Close sessions that have been idle for longer than their time to live. The sessions in
        `waiting` have waiting calls, so they do not count as idle and are not evicted.
        """
        now = self._clock()
        for session_id in waiting:
            if session := self._open.get(session_id):
                session.used = now
        for session_id, session in list(self._open.items()):
            if now - session.used > self._ttl and not session.active:
                self.counts.expired += 1
                self._drop(session_id)

    def _extend(self, context: Context, length: int) -> Session:
        session = self._open.get(context.session_id)
        if session and context.turn <= session.turn:
            self.counts.stale += 1
            raise StaleTurn(f"turn {context.turn} is stale: the session is at turn {session.turn}")
        reach = self._prefixes.reach(session, context.base) if session else 0
        held = (session.epoch, reach) if session else (0, 0)
        if context.epoch not in (0, held[0]) or context.base > (held[1] if context.epoch else 0):
            self.counts.misses += 1
            raise SessionMiss(f"base {context.base} is not cached here")
        if session and context.epoch and context.base:
            why = self._find_memory(length, session)
            if not why and self.cut(session, context.base) < context.base:
                why = "no memory for a copy of a page"
            if why := why or self._find_memory(length, session):  # truncation may release pages
                self._drop(context.session_id)
                raise self._busy(why)
        else:
            session = self._begin(context, length, held[0] or self._new_epoch())
        session.turn, session.used = context.turn, self._clock()
        return session

    def _begin(self, context: Context, length: int, epoch: int) -> Session:
        """Close the session if it is open, and open it anew with the cached prefix of its text."""
        self._drop(context.session_id)
        session = Session(PageTable(page=self._pool.page), epoch, context.client)
        try:
            self._prefixes.begin(
                session, context.tokens[:-1], lambda: self.reserve(session, length)
            )
        except BaseException:  # Busy, or MemoryError from a copy
            self._prefixes.end(session)
            raise
        self.counts.reused_tokens += session.length
        self._open[context.session_id] = session
        return session

    def _busy(self, why: str) -> Busy:
        wait = min(RETRY_SECONDS + RETRY_STEP_SECONDS * self._refused, LONGEST_RETRY_SECONDS)
        self._refused += 1
        return Busy(why, wait)

    def _find_memory(self, length: int, session: Session) -> str:
        """Allocate memory for `length` tokens of a session, which may be new. Evict as few other
        sessions as possible. If memory is short, sliding-window layers get memory only for pages
        that they need at once. Returns the reason if there is not enough memory, else "".
        """
        pool, table = self._pool, session.table
        pool.trim(table, session.length)
        price = pool.price(table, length)
        if price <= 0 and session.active:
            return ""
        if narrow := price > pool.free + self._prefixes.idle:
            price = pool.price(table, length, narrow)
        order = evictable(self._open.values(), session, self._clock() - self._evict_after)
        surplus = len(self) + (session not in self._open.values()) - self.max_sessions
        if surplus > len(order):
            return f"all {self.max_sessions} sessions are in use"
        lacking = price - pool.free - self._prefixes.idle
        if (leaving := to_evict(order, surplus, lacking, pool.parts)) is None:
            return "too little memory for a new or longer session"
        names = {other: name for name, other in self._open.items()} if leaving else {}
        for other in leaving:
            self.counts.evicted += 1
            self._drop(names[other])
        self._refused = 0
        self._prefixes.evict(price - pool.free)
        pool.grow(table, length, narrow)
        return ""

    def _drop(self, session_id: bytes) -> None:
        if session := self._open.pop(session_id, None):
            self._prefixes.end(session)
