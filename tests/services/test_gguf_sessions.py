"""The session rule on llama.cpp's cache: whatever is lost, late, said twice, shared, evicted or
restarted, the logits are those of the committed text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from engine.cache.rooms import BLOCK
from engine.cache.session import Session
from engine.forward.segment import Segment
from engine.gguf.model import Model, load
from engine.gguf.runner import Runner
from models import DRAFT
from protos import tree
from tests.ggufs import Alone, MakeGGUF, needs_llama
from tests.laws import test_session_rule
from tests.laws.replica import LENGTH, TTL, Replica, Tokens

pytestmark = needs_llama
SEQUENCES = 4  # fewer than there can be sessions
CLOSE = 2e-3


class LlamaReplica(Replica):
    """A process whose cache is llama.cpp's; what a call leaves there is checked by its logits."""

    model: Model
    alone: Alone

    def restart(self) -> None:
        """Another process at the same address."""
        positions = self._blocks * BLOCK
        decoder = self.model.context(positions, SEQUENCES)
        self.runner = Runner(self.model, decoder, positions, sequences=SEQUENCES)
        self.pool: Any = self.runner.pool
        self.sessions = self._kind(
            self.pool, LENGTH, self._most, self._epochs.__next__, TTL, lambda: self.now
        )
        self.rooms: dict[bytes, Session] = {}

    def held(self, session: Session) -> Tokens:
        """The committed tokens as the room has them."""
        return tuple(self.pool.held(session.room).tokens[: session.length])

    def check_memory(self) -> None:
        """Nothing is taken but rooms of sessions, and llama.cpp found cells for all."""
        rooms = [session.room for session in self.rooms.values() if session.room.capacity]
        assert self.pool.taken == sum(room.capacity for room in rooms) <= self.pool.positions
        assert len(self.sessions) <= self.sessions.most

    def _writers(self, session: Session, length: int) -> set[int]:
        return set()

    def _write(self, session: Session, start: int, tokens: Tokens, writer: int) -> None:
        if not tokens:
            return
        fed = Segment(session.room, start, tokens, tree.chain(len(tokens)), len(tokens))
        (logits,) = self.runner([fed])
        text = self.held(session)[:start] + tokens
        expected = self.alone.whole(text)[start:]
        assert np.abs(logits.numpy() - expected).max() < CLOSE, "the cache holds another text"


@pytest.fixture
def replica(make_gguf: MakeGGUF) -> Iterator[type[LlamaReplica]]:
    """Processes that serve the draft model."""
    LlamaReplica.model = load(make_gguf(DRAFT, "f32"))
    LlamaReplica.alone = Alone(LlamaReplica.model, LENGTH)
    yield LlamaReplica
    del LlamaReplica.model, LlamaReplica.alone


def test_no_fault_makes_llamas_cache_disagree_with_the_committed_tokens(
    replica: type[LlamaReplica],
) -> None:
    faults = type("LlamaFaults", (test_session_rule.Faults,), {"replica": replica})
    run_state_machine_as_test(faults, settings=settings(test_session_rule.quick, max_examples=60))
