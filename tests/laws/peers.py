"""Simulated services that keep the session rule, at the other end of a relay."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.protos.errors import (
    Busy,
    SessionMiss,
    StaleTurn,
    TandemError,
    Unavailable,
)
from tandem.protos.streams import Commit, Decoding, Drafting, EncodedProposal, Flow, Proposal
from tandem.protos.types import TokenLogprobs
from tandem.verifier_service.service import MAX_WAITING_PROPOSALS
from tests.laws.wires import Call, Closing, OnStream, Server

VOCABULARY = 7
FENCES = frozenset({"turn", "newest", "close", "rollback", "delivery", "fingerprint"})
CLOSED = "closed"


def follows(tokens: Sequence[int], model: int = 0) -> int:
    """Return the next token of the target (model 0), which depends on all tokens before it."""
    return hash((*tokens, -1) if model else tuple(tokens)) % VOCABULARY


def likely(tokens: Sequence[int], model: int = 0) -> TokenLogprobs:
    """Return how likely the target finds the last of the tokens."""
    return TokenLogprobs(-float(hash((*tokens, -2 - model)) % 97))


@dataclass(eq=False)
class Job:
    """An opening that a simulated service serves."""

    call: Call
    stream: int
    opening: Any
    length: int
    live: bool = True
    paused: bool = False
    waits: bool = False
    drafted: int = 0  # nodes
    source: int = 0  # the source of the proposals that it received
    told: int = 0  # how many tokens of the prompt were reported
    # the text that ends at each node
    paths: dict[int, tuple[int, ...]] = field(default_factory=dict)
    inbox: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=MAX_WAITING_PROPOSALS)
    )
    # base length and number of nodes of each proposal


@dataclass
class Held:
    """A session."""

    turn: int
    tokens: list[int]
    job: Job


class Service(Server):
    """A simulated service that keeps the session rule."""

    def __init__(self, *world: Any) -> None:
        super().__init__(*world)
        self.fences = FENCES
        self.held: dict[bytes, Held] = {}
        self.jobs: list[Job] = []

    def begin(self, job: Job) -> None:
        """Serve an opening."""
        raise NotImplementedError

    def take(self, job: Job, item: Any) -> None:
        """Handle an item of a stream that is being served."""
        raise NotImplementedError

    def receive(self, call: Call, item: OnStream | Closing) -> None:
        if not self.up:
            return
        if isinstance(item, Closing):
            self.close(item)
        elif isinstance(item.value, Decoding | Drafting):
            self.open(call, item.stream, item.value)
        else:
            for job in self.jobs:
                held = self.held.get(job.opening.context.session_id)
                if held and job.live and (job.call, job.stream) == (call, item.stream):
                    self.take(job, item.value)

    def open(self, call: Call, stream: int, opening: Any) -> None:
        context = opening.context
        held = self.held.get(context.session_id)
        if self.rng.random() < self.evil:
            errors = Busy("full", 0.3), Unavailable("warming up"), SessionMiss("gone")
            return self.fail(call, stream, self.rng.choice(errors))
        if held and context.turn <= held.turn and "turn" in self.fences:
            return self.fail(call, stream, StaleTurn("old"))
        if held and "newest" in self.fences:
            held.job.live = False
        job = Job(call, stream, opening, context.length)
        if held:
            held.turn, held.job = max(held.turn, context.turn), job
            if "rollback" in self.fences or len(held.tokens) < context.length:
                held.tokens[:] = context.tokens
        else:
            self.held[context.session_id] = Held(context.turn, list(context.tokens), job)
        self.jobs.append(job)
        self.begin(job)

    def fail(self, call: Call, stream: int, error: TandemError) -> None:
        call.answer(OnStream(stream, error))

    def close(self, closing: Closing) -> None:
        """Forget a session unless a newer turn has opened it; the message says whose session it
        is.
        """
        held = self.held.get(closing.session_id)
        if held and ("close" not in self.fences or held.turn <= closing.turn):
            del self.held[closing.session_id]
            if held.job.live:
                self.fail(held.job.call, held.job.stream, SessionMiss(CLOSED))
            held.job.live = False

    def evict(self) -> None:
        """Evict all sessions."""
        for held in self.held.values():
            if held.job.live:
                held.job.live = False
                self.fail(held.job.call, held.job.stream, SessionMiss("evicted"))
        self.held.clear()

    def restart(self) -> None:
        """Start another process after a while."""
        self.up = False
        self.held.clear()
        for job in self.jobs:
            job.live = False
        for link in self.links:
            link.lose()
        self.clock.call_later(3 * self.rng.random(), self._rise)

    def gone(self, call: Call) -> None:
        for job in self.jobs:
            job.live &= job.call is not call

    def _rise(self) -> None:
        """Come up again, sometimes with another model for a while, as after an operator's
        mistake.
        """
        if self.up:
            return
        self.up, self.model = True, int(self.evil > 0 and self.rng.random() < self.evil)
        if self.model:
            self.clock.call_later(5, self.restart)


class Verifier(Service):
    """A simulated verifier that decodes by itself; a proposal only makes its steps longer."""

    def begin(self, job: Job) -> None:
        if wanted := job.opening.prompt_logprobs:
            job.told = wanted.first
        self._soon(job)

    def take(self, job: Job, item: Flow | Proposal | EncodedProposal) -> None:
        if isinstance(item, Flow):
            job.paused = item.paused
        else:
            self._remember(job, item.message if isinstance(item, EncodedProposal) else item)
        if job.waits and self._may(job):
            job.waits = False
            self._soon(job)

    def _remember(self, job: Job, proposal: Any) -> None:
        text = self.held[job.opening.context.session_id].tokens
        if proposal.source != job.source:
            job.source, job.paths = proposal.source, {}
        job.inbox.append((proposal.behind, len(proposal.tokens)))
        if proposal.behind > len(text):
            return
        job.paths[0] = tuple(text[: proposal.behind])
        for place, (parent, token) in enumerate(
            zip(proposal.parents, proposal.tokens, strict=True)
        ):
            if parent in job.paths:
                job.paths[proposal.first + place] = (*job.paths[parent], token)

    def _may(self, job: Job) -> bool:
        if job.paused or not job.opening.lockstep:
            return not job.paused
        while job.inbox and job.inbox[0][0] != job.length:
            job.inbox.popleft()
        return bool(job.inbox)

    def _soon(self, job: Job) -> None:
        self.clock.call_later(0.05 + 0.1 * self.rng.random(), lambda: self._step(job))

    def _step(self, job: Job) -> None:
        held = self.held.get(job.opening.context.session_id)
        if not (job.live and held):
            return
        wanted = job.opening.prompt_logprobs
        if wanted and job.told < wanted.until and not job.paused:
            return self._tell(job, held.tokens)
        if not self._may(job):
            job.waits = True
            return
        if job.length >= job.opening.until:
            return
        text, proposed = held.tokens, set(job.paths.values())
        fresh = [follows(text, self.model)]
        while (*text, *fresh) in proposed and job.length + len(fresh) < job.opening.until:
            fresh.append(follows(text + fresh, self.model))
        accepted = len(fresh) - 1
        drafted = job.inbox[0][1] if job.opening.lockstep else accepted
        commit = Commit(job.length, tuple(fresh), drafted=drafted, accepted=accepted)
        job.call.answer(OnStream(job.stream, commit))
        text += fresh
        job.length += len(fresh)
        if job.length < job.opening.until:
            self._soon(job)
        else:
            job.live = False

    def _tell(self, job: Job, text: list[int]) -> None:
        """Send a piece of the prompt's log-probabilities."""
        stop = min(job.told + self.rng.randint(1, 4), job.opening.prompt_logprobs.until)
        places = range(job.told, stop)
        told = tuple(likely(text[: place + 1], self.model) for place in places)
        commit = Commit(job.told, tuple(text[job.told : stop]), logprobs=told)
        job.call.answer(OnStream(job.stream, commit))
        job.told = stop
        self._soon(job)
