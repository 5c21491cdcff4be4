"""The session rule: whatever is lost, late, said twice, evicted or restarted, no cache silently
disagrees.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.sessions import Sessions
from orchestrator.generation import Cursor, Generation
from orchestrator.rounds import ask
from protos import tree
from protos.errors import SessionMiss, StaleTurn, TransportLost
from protos.types import Context, Draft, Proposal, SamplingParams, Verdict
from tests.laws.replica import LENGTH, SLOTS, TTL, Answer, Message, Replica, Tokens, Unfenced

Result = TypeVar("Result")
tokens = st.integers(1, 9)
guesses = st.lists(tokens, max_size=4).map(tuple)
fates = st.sampled_from(("answered", "answered", "answered", "request lost", "answer lost", "late"))
services = st.sampled_from(("drafter", "verifier"))
names = st.sampled_from((b"a", b"b"))


def finished(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it waited")


class Faults(RuleBasedStateMachine):
    """Two generations, a drafter and a verifier, and a network that loses, delays and repeats."""

    kind: ClassVar[type[Sessions]] = Sessions

    def __init__(self) -> None:
        super().__init__()
        self.replicas = {"drafter": Replica(self.kind), "verifier": Replica(self.kind)}
        self.generations = {
            name: Generation(name, (1, 2, 3), SamplingParams(), LENGTH) for name in (b"a", b"b")
        }
        self.wire: dict[str, list[Message]] = {"drafter": [], "verifier": []}

    def call(
        self, service: str, generation: Generation, cursor: Cursor, work: tuple[str, Tokens, Tokens]
    ) -> Answer:
        """Ask a service through the network; returns what it answers."""
        fate, tail, path = work

        async def send(context: Context) -> Answer:
            message = Message(context, generation.prompt + tuple(generation.completion))
            self.wire[service].append(message)
            if fate in ("request lost", "late"):
                raise TransportLost(fate)
            answer = self.replicas[service].serve(message, tail, path)
            if fate == "answer lost":
                raise TransportLost(fate)
            return answer

        return finished(ask(generation, cursor, send))

    @precondition(
        lambda self: any(
            generation.length < LENGTH - 12 for generation in self.generations.values()
        )
    )
    @rule(
        name=names,
        guessed=guesses,
        taken=st.integers(0, 4),
        recovered=tokens,
        fate=st.tuples(fates, fates),
    )
    def round(
        self, name: bytes, guessed: Tokens, taken: int, recovered: int, fate: tuple[str, str]
    ) -> None:
        """Propose, verify, advance; a fault leaves the round to be tried again."""
        generation = self.generations[name]
        if generation.length >= LENGTH - 12:
            return
        draft, trunk = Draft(), tuple(range(max(0, len(guessed) - 1)))
        try:
            answer = self.call("drafter", generation, generation.drafter, (fate[0], guessed, trunk))
            draft = Draft.chain(guessed)
            generation.drafted(Proposal(draft, answer.held, answer.epoch))
        except TransportLost:
            pass
        path = tuple(range(min(taken, len(draft))))
        try:
            answer = self.call(
                "verifier", generation, generation.verifier, (fate[1], draft.tokens, path)
            )
        except TransportLost:
            generation.drafter.cached = min(generation.drafter.cached, generation.length)
            return
        generation.advance(draft, Verdict(path, recovered, answer.held, answer.epoch))

    @rule(service=services, which=st.integers(0, 1 << 20), tail=guesses)
    def deliver_late(self, service: str, which: int, tail: Tokens) -> None:
        """A message comes (again), long after the orchestrator went on."""
        if not self.wire[service]:
            return
        replica, message = (
            self.replicas[service],
            self.wire[service][which % len(self.wire[service])],
        )
        newest = replica.served.get(message.context.session_id)
        stale = newest is not None and message.context.turn <= newest
        try:
            replica.serve(message, tail, tree.chain(len(tail))[1:])
        except StaleTurn:
            assert stale
        except SessionMiss:
            assert not stale
        else:
            assert not stale

    @rule(service=services, name=names)
    def evict(self, service: str, name: bytes) -> None:
        """The service drops a session; messages to it are still on their way."""
        self.replicas[service].close(name)

    @rule(service=services)
    def expire(self, service: str) -> None:
        """All sessions were idle for too long."""
        self.replicas[service].expire(TTL + 1)
        assert len(self.replicas[service].sessions) == 0

    @rule(service=services)
    def restart(self, service: str) -> None:
        """The process dies; another one gets its late messages."""
        self.replicas[service].restart()

    @invariant()
    def no_slot_leaks(self) -> None:
        """Every slot is free or held by one session."""
        for replica in self.replicas.values():
            assert replica.cache.free + len(replica.sessions) == SLOTS


quick = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_no_fault_makes_a_cache_silently_disagree_with_the_committed_tokens() -> None:
    run_state_machine_as_test(Faults, settings=quick)


def test_without_the_turn_the_same_faults_make_a_cache_disagree() -> None:
    """The machine above can fail: it does as soon as the fence is taken away."""
    unfenced = type("UnfencedFaults", (Faults,), {"kind": Unfenced})
    search = settings(
        quick, max_examples=300, phases=(Phase.generate,), derandomize=True, database=None
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(unfenced, settings=search)
