"""A model of a drafter or verifier: real sessions over a real slab whose keys are the tokens that
they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import torch

from engine.kv import LayerGeometry, SlabCache
from engine.sessions import Session, Sessions
from protos.types import Context

SLOTS, LENGTH, TTL = 2, 64, 10.0
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Message:
    """A call on its way, and the committed tokens as its sender knew them, which the service never
    sees.
    """

    context: Context
    committed: Tokens


@dataclass(frozen=True)
class Answer:
    """What the service holds afterwards, and of which opening of the session."""

    held: int
    epoch: int


def tiny_cache(slots: int = SLOTS) -> SlabCache:
    """A slab of one layer, one head and one number per token."""
    return SlabCache([LayerGeometry(1, 1, 1)], slots, LENGTH, torch.float32, torch.device("cpu"))


class Unfenced(Sessions):
    """Sessions that forget at which turn they are: what the fence is compared with."""

    def extend(self, context: Context) -> Session:
        """As the rule, but every turn is a new one."""
        if session := self._open.get(context.session_id):
            session.turn = -1
        return super().extend(context)


class Replica:
    """A process that serves; no two openings of a session have the same epoch, not even in two
    processes.
    """

    def __init__(self, kind: type[Sessions] = Sessions) -> None:
        self.now = 0.0
        self._kind = kind
        self._epochs = count(1)
        self.restart()

    def restart(self) -> None:
        """Another process at the same address."""
        self.cache = tiny_cache()
        self.sessions = self._kind(self.cache, LENGTH, self._epochs.__next__, TTL, lambda: self.now)
        self.served: dict[bytes, int] = {}

    def serve(self, message: Message, guesses: Tokens, path: Sequence[int]) -> Answer:
        """Append the context and the guesses, then keep the guesses of a path.

        The tokens that the rule kept must be the sender's.
        """
        with torch.inference_mode():
            return self._serve(message, guesses, path)

    def _serve(self, message: Message, guesses: Tokens, path: Sequence[int]) -> Answer:
        context = message.context
        session = self.sessions.extend(context)
        held, meant = self.held(session, context.base), message.committed[: context.base]
        assert held == meant, f"the cache holds {held} and stands for {meant}"
        self._write(session, context.base, context.tokens + guesses)
        self.served[context.session_id] = context.turn
        return Answer(self.sessions.keep(session, context.length, path), session.epoch)

    def close(self, session_id: bytes) -> None:
        """Evict a session."""
        self.sessions.close(session_id)
        self.served.pop(session_id, None)

    def expire(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.sessions.expire(lambda _: False)
        if not len(self.sessions):
            self.served.clear()

    def held(self, session: Session, length: int) -> Tokens:
        """The first tokens in a session's slot."""
        return tuple(int(key) for key in self.cache.keys[0][session.slot, 0, :length, 0].tolist())

    def _write(self, session: Session, start: int, tokens: Tokens) -> None:
        rows = torch.tensor(tokens, dtype=torch.float32)[None, :, None]
        for store in (self.cache.keys[0], self.cache.values[0]):
            store[session.slot, :, start : start + len(tokens)] = rows
