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

from tandem.engine.cache.pages import PAGE
from tandem.engine.cache.session import Session
from tandem.engine.forward.segment import Segment
from tandem.engine.gguf.llama import BatchRow
from tandem.engine.gguf.model import GGUFModel, load
from tandem.engine.gguf.runner import GGUFRunner
from tandem.models import DRAFT
from tandem.protos import tree
from tests.ggufs import Alone, MakeGGUF, needs_llama
from tests.laws import test_session_rule
from tests.laws.replica import LENGTH, TTL, Replica, Tokens

pytestmark = needs_llama
SEQUENCES = 4  # fewer than there can be sessions
CLOSE = 2e-3


class LlamaReplica(Replica):
    """A process whose cache is llama.cpp's; what a call leaves there is checked by its logits."""

    model: GGUFModel
    alone: Alone

    def restart(self) -> None:
        """Another process at the same address."""
        positions = self._blocks * PAGE
        decoder = self.model.context(positions, SEQUENCES)
        self.runner = GGUFRunner(self.model, decoder, positions, sequences=SEQUENCES)
        self.pool: Any = self.runner.pool
        self.sessions = self._kind(
            self.pool, LENGTH, self._most, self._epochs.__next__, TTL, lambda: self.now
        )
        self.opened: dict[bytes, Session] = {}

    def held(self, session: Session) -> Tokens:
        """The committed tokens as its pages have them."""
        return tuple(self.pool.content(session.table).tokens[: session.length])

    def check_memory(self) -> None:
        """Nothing is allocated but pages of sessions and of kept texts, and llama.cpp found cells
        for all.
        """
        tables = [session.table for session in self.opened.values()]
        tables += [kept.table for kept in self.pool.prefixes._kept]
        taken = {id(table): table.capacity for table in tables}
        assert self.pool.allocated == sum(taken.values()) <= self.pool.positions
        assert len(self.sessions) <= self.sessions.max_sessions

    def _writers(self, session: Session, length: int) -> set[int]:
        return set()

    def _write(self, session: Session, start: int, tokens: Tokens, writer: int) -> None:
        if not tokens:
            return
        fed = Segment(session.table, start, tokens, tree.chain(len(tokens)), len(tokens))
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


def test_a_freed_context_is_not_used_any_more(make_gguf: MakeGGUF) -> None:
    """A job that is collected together with its context may release its sequences later."""
    model = load(make_gguf(DRAFT, "f32"))
    context = model.context(64, SEQUENCES)
    model.weights_file.__del__()
    context.decode([BatchRow(5, 0, [0], True)])
    context.__del__()
    context.remove(0, 0)
    context.__del__()
