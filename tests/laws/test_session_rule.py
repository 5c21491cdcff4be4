"""The session rule: no cache disagrees unnoticed, whatever is lost, late, repeated, shared, evicted
or restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tandem.engine.cache.pages import PAGE
from tandem.engine.cache.sessions import IDLE_SECONDS, Sessions
from tandem.protos import tree
from tandem.protos.errors import Busy, SessionMiss, StaleTurn, TransportLost
from tandem.protos.types import Context
from tests.laws.replica import LENGTH, TTL, Answer, Message, Replica, Tokens, Unfenced

SHARED = tuple(range(100, 100 + PAGE + 2))  # a prefix that is long enough to be cached
CLIENTS = {b"a": b"x", b"b": b"x", b"c": b"y", b"d": b""}
tokens = st.integers(1, 9)
proposals = st.lists(tokens, max_size=4).map(tuple)
fates = st.sampled_from(("answered", "answered", "answered", "request lost", "answer lost", "late"))
services = st.sampled_from(("drafter", "verifier"))
names = st.sampled_from(sorted(CLIENTS))
pauses = st.sampled_from((IDLE_SECONDS, 0.0, IDLE_SECONDS / 2))


@dataclass
class Cursor:
    """What the caller believes that a service holds."""

    turn: int = 0
    cached: int = 0
    epoch: int = 0


@dataclass
class Talk:
    """A growing text, and two services that are kept up to date with it."""

    name: bytes
    text: Tokens
    client: bytes
    drafter: Cursor = field(default_factory=Cursor)
    verifier: Cursor = field(default_factory=Cursor)

    def context(self, cursor: Cursor) -> Context:
        """Return the context of the next call: what the service holds stays, and the rest is
        sent.
        """
        cursor.turn += 1
        client = b"" if cursor.epoch else self.client
        rest = self.text[cursor.cached :]
        return Context(self.name, cursor.turn, cursor.cached, rest, cursor.epoch, client)


class Faults(RuleBasedStateMachine):
    """Generations of two clients and of callers without a name, a drafter and a verifier too small
    for all of them, and a network that loses, delays and repeats messages.
    """

    kind: ClassVar[type[Sessions]] = Sessions
    replica: ClassVar[Callable[..., Replica]] = Replica

    def __init__(self) -> None:
        super().__init__()
        self.wire: dict[str, list[Message]] = {"drafter": [], "verifier": []}
        self.served: dict[str, dict[bytes, int]] = {"drafter": {}, "verifier": {}}

    @initialize(
        blocks=st.integers(3, 7),
        most=st.integers(2, 4),
        shared=st.sampled_from((0, len(SHARED), len(SHARED))),
    )
    def start(self, blocks: int, most: int, shared: int) -> None:
        """Start a generation; its prompt is the same as others', shares a part, or shares
        nothing.
        """
        self.replicas = {
            service: type(self).replica(self.kind, blocks, most)
            for service in ("drafter", "verifier")
        }
        self.talks = {
            name: Talk(name, SHARED[:shared] + own, CLIENTS[name])
            for name, own in zip(CLIENTS, ((1, 2, 3), (1, 2, 4, 5), (1, 2, 3), (1, 2)), strict=True)
        }

    def call(
        self, service: str, talk: Talk, cursor: Cursor, work: tuple[str, Tokens, Tokens]
    ) -> Answer:
        """Call a service through the network, once more if it does not hold the session; return its
        answer.
        """
        try:
            return self.send(service, Message(talk.context(cursor), talk.text), work)
        except SessionMiss:
            cursor.cached = cursor.epoch = 0
            return self.send(service, Message(talk.context(cursor), talk.text), work)

    def send(self, service: str, message: Message, work: tuple[str, Tokens, Tokens]) -> Answer:
        """Send a message, which may be lost."""
        fate, tail, path = work
        self.wire[service].append(message)
        if fate in ("request lost", "late"):
            raise TransportLost(fate)
        answer = self.serve(service, message, tail, path)
        if fate == "answer lost":
            raise TransportLost(fate)
        return answer

    def serve(self, service: str, message: Message, tail: Tokens, path: Tokens) -> Answer:
        """Serve a message that arrived."""
        answer = self.replicas[service].serve(message, tail, path)
        self.served[service][message.context.session_id] = message.context.turn
        return answer

    @rule(
        name=names,
        proposed=proposals,
        taken=st.integers(0, 4),
        recovered=tokens,
        fate=st.tuples(fates, fates),
        seconds=pauses,
    )
    def round(
        self,
        name: bytes,
        proposed: Tokens,
        taken: int,
        recovered: int,
        fate: tuple[str, str],
        seconds: float,
    ) -> None:
        """Propose, verify and commit; a round that a fault interrupts can be tried again."""
        for replica in self.replicas.values():
            replica.expire(seconds)
        talk = self.talks[name]
        if len(talk.text) >= LENGTH - 12:
            return
        draft, trunk = (), tuple(range(max(0, len(proposed) - 1)))
        try:
            answer = self.call("drafter", talk, talk.drafter, (fate[0], proposed, trunk))
            draft = proposed
            talk.drafter.cached, talk.drafter.epoch = answer.held, answer.epoch
        except (TransportLost, Busy):
            pass
        path = tuple(range(min(taken, len(draft))))
        talk.drafter.cached = min(talk.drafter.cached, len(talk.text) + len(path))
        try:
            answer = self.call("verifier", talk, talk.verifier, (fate[1], draft, path))
        except (TransportLost, Busy):
            talk.drafter.cached = min(talk.drafter.cached, len(talk.text))
            return
        talk.verifier.cached, talk.verifier.epoch = answer.held, answer.epoch
        talk.text += (*draft[: len(path)], recovered)

    @rule(service=services, which=st.integers(0, 1 << 20), tail=proposals)
    def deliver_late(self, service: str, which: int, tail: Tokens) -> None:
        """Deliver a message (again) long after the orchestrator continued."""
        if not self.wire[service]:
            return
        message = self.wire[service][which % len(self.wire[service])]
        session_id, turn = message.context.session_id, message.context.turn
        held = self.replicas[service].holds(session_id)
        stale = held and turn <= self.served[service][session_id]
        stale = stale and self.kind is not Unfenced
        counts = self.replicas[service].sessions.counts
        counted = counts.stale + stale
        try:
            self.serve(service, message, tail, tree.chain(len(tail))[1:])
        except StaleTurn:
            assert stale
        except (SessionMiss, Busy):
            assert not stale
        else:
            assert not stale
        assert counts.stale == counted

    @rule(service=services, name=names)
    def close(self, service: str, name: bytes) -> None:
        """Tell a service to forget a session while messages to it are under way."""
        self.replicas[service].close(name)

    @rule(service=services)
    def expire(self, service: str) -> None:
        """Let all sessions be idle for too long."""
        replica = self.replicas[service]
        replica.expire(TTL + 1)
        assert (len(replica.sessions), replica.sessions.usage) == (0, 0)

    @rule(service=services)
    def restart(self, service: str) -> None:
        """Let a process die; its successor gets the late messages."""
        self.replicas[service].restart()

    @invariant()
    def no_memory_leaks(self) -> None:
        """Every position is free or belongs to a session, and no more sessions are open than
        allowed.
        """
        for replica in self.replicas.values():
            replica.check_memory()


quick = settings(max_examples=100, stateful_step_count=40, suppress_health_check=list(HealthCheck))


def test_no_fault_makes_a_cache_silently_disagree_with_the_committed_tokens() -> None:
    run_state_machine_as_test(Faults, settings=quick)


def test_without_the_turn_the_same_faults_make_a_cache_disagree() -> None:
    """The simulation can fail: it does once the fence is removed."""
    state = type("UnfencedFaults", (Faults,), {"kind": Unfenced})()
    answered = ("answered", "answered")
    state.start(blocks=3, most=2, shared=0)
    state.round(name=b"d", proposed=(2,), taken=1, recovered=1, fate=answered, seconds=0.0)
    state.deliver_late(service="verifier", which=0, tail=(1, 1))
    with pytest.raises(AssertionError, match="the cache holds"):
        state.round(name=b"d", proposed=(), taken=0, recovered=1, fate=answered, seconds=0.0)
