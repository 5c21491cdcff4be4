"""A model of a drafter or verifier: real sessions over a real pool. A position's key is its token,
and its value is the scope that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from tandem.engine.cache.pages import PAGE, PageTable
from tandem.engine.cache.pool import KVPool, LayerGeometry
from tandem.engine.cache.prefix_tree import PrefixNode
from tandem.engine.cache.session import Session
from tandem.engine.cache.sessions import Sessions
from tandem.protos.types import Context

BLOCKS, MOST, LENGTH, TTL = 4, 2, 2 * PAGE, 10.0
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Message:
    """A call under way, with the committed tokens as its sender knows them, which the service never
    sees.
    """

    context: Context
    committed: Tokens


@dataclass(frozen=True)
class Answer:
    """What the service holds after a call, and by which opening of the session."""

    held: int
    epoch: int
    reused: int


def tiny_pool(blocks: int = BLOCKS) -> KVPool:
    """A pool with one layer, one head and one number per token."""
    return KVPool([LayerGeometry(1, 1, 1)], blocks * PAGE, torch.float32, torch.device("cpu"))


def mark(scope: bytes) -> int:
    """Return the value that is written for a scope."""
    return int.from_bytes(scope[:3], "little")


def nodes_of(tree: Any) -> Iterator[PrefixNode]:
    """Return the nodes of all cached pages."""
    left = list(tree._roots.values())
    while left:
        node = left.pop()
        left += node.children.values()
        if node.parent:
            yield node


class Unfenced(Sessions):
    """Sessions that forget their turn, which the fence against late openings compares."""

    @contextmanager
    def acquire(self, context: Context, nodes: int) -> Iterator[Session]:
        """Follow the session rule, except that every turn counts as new."""
        if session := self._open.get(context.session_id):
            session.turn = -1
        with super().acquire(context, nodes) as session:
            yield session


class Replica:
    """A serving process; no two openings of a session have the same epoch, not even in two
    processes.
    """

    def __init__(
        self, kind: type[Sessions] = Sessions, blocks: int = BLOCKS, most: int = MOST
    ) -> None:
        self.now = 0.0
        self._kind, self._blocks, self._most = kind, blocks, most
        self._epochs = count(1)
        self.restart()

    def restart(self) -> None:
        """Another process at the same address."""
        self.pool = tiny_pool(self._blocks)
        self.sessions = self._kind(
            self.pool, LENGTH, self._most, self._epochs.__next__, TTL, lambda: self.now
        )
        self.opened: dict[bytes, Session] = {}

    @contextmanager
    def at_work(self, context: Context, nodes: int = 0) -> Iterator[Session]:
        """Begin a call on the service; the tokens that it starts with must be the sender's."""
        with torch.inference_mode(), self.sessions.acquire(context, nodes) as session:
            assert session.table.capacity >= context.length + nodes, "no space for what was asked"
            assert not context.epoch or session.length == context.base
            self.opened[context.session_id] = session
            yield session

    def serve(self, message: Message, proposals: Tokens = (), path: Sequence[int] = ()) -> Answer:
        """Append the context and the proposals, then keep the proposals of a path.

        The tokens that the session rule keeps must be the sender's.
        """
        context = message.context
        with self.at_work(context, len(proposals)) as session:
            start = session.length
            held, meant = self.held(session), message.committed[:start]
            assert held == meant, f"the cache holds {held} and stands for {meant}"
            assert tuple(session.tokens) == meant, "the rule has lost track"
            writer = mark(session.scope)
            assert self._writers(session, start) <= {writer}, (
                "it holds what was said in another scope"
            )
            tokens = context.tokens[start - context.base :] + proposals
            self._write(session, start, tokens, writer)
            reused = start - context.base
            return Answer(
                self.sessions.keep(session, context, proposals, path), session.epoch, reused
            )

    def open(self, session_id: bytes, tokens: Tokens, client: bytes = b"", turn: int = 1) -> Answer:
        """Serve an opening call."""
        return self.serve(Message(Context(session_id, turn, 0, tokens, client=client), tokens))

    def close(self, session_id: bytes) -> None:
        """Forget a session."""
        self.sessions.close(session_id)

    def expire(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.sessions.expire()

    def holds(self, session_id: bytes) -> bool:
        """Return whether a session still has its memory."""
        return session_id in self.opened and self.opened[session_id].table.capacity > 0

    def held(self, session: Session) -> Tokens:
        """Return the committed tokens that a session's pages hold."""
        return self._rows(self.pool.keys[0], session, session.length)

    def check_memory(self) -> None:
        """Check that each page in use is held by a session or cached, and that cached pages hold
        the right tokens.
        """
        sessions = [each for each in self.opened.values() if each.table.capacity]
        held = {page for session in sessions for page in session.table.pages}
        nodes = list(nodes_of(self.pool.prefixes))
        cached = {node.page for node in nodes}
        assert len(cached) == len(nodes), "a page is cached for two texts"
        assert self.pool.allocated == len(held | cached) * PAGE <= self.pool.positions
        assert self.sessions.prefix_usage == len(cached - held) * PAGE / self.pool.positions
        assert abs(self.sessions.usage - len(held) * PAGE / self.pool.positions) < 1e-9
        assert len(self.sessions) <= self.sessions.max_sessions
        for node in nodes:
            slots = PageTable([node.page]).slots(0, len(node.tokens))
            assert self.pool.keys[0][slots, 0, 0].tolist() == list(node.tokens)
            assert set(self.pool.values[0][slots, 0, 0].tolist()) == {float(mark(node.scope))}

    def _writers(self, session: Session, length: int) -> set[int]:
        """Return the scopes that wrote the first tokens of a session's pages."""
        return set(self._rows(self.pool.values[0], session, length))

    def _rows(self, store: torch.Tensor, session: Session, length: int) -> Tokens:
        return tuple(int(row) for row in store[session.table.slots(0, length), 0, 0].tolist())

    def _write(self, session: Session, start: int, tokens: Tokens, writer: int) -> None:
        rows = session.table.slots(start, start + len(tokens))
        self.pool.keys[0][rows, 0, 0] = torch.tensor(tokens, dtype=torch.float32)
        self.pool.values[0][rows] = writer
