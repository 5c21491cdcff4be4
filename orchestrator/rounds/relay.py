"""Relays commits and proposals: the verifier's commits go to the drafter and to the client, and the
drafter's proposals go to the verifier.

This module is the best place to start reading. Events arrive as function calls and are handled at
once, so nothing in this module blocks. The verifier continues to decode, whatever the drafter does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import structlog

from tandem.orchestrator.rounds.backoff import DraftBackoff
from tandem.orchestrator.rounds.generation import Generation, RunRequest
from tandem.orchestrator.rounds.lockstep import Lockstep
from tandem.orchestrator.rounds.step import DraftWatch, Step
from tandem.orchestrator.rounds.stream import ServiceLink, SessionStream, Timer
from tandem.protos.errors import Busy, SessionMiss, TandemError, is_transient
from tandem.protos.streams import Commit, Decoding, Drafting, EncodedProposal, Flow, Proposal
from tandem.protos.types import NO_DRAFT_SHAPE, Method, Rule

PAUSE_AT, RESUME_AT = 64, 16  # numbers of unread steps at which to pause and resume the verifier
VERIFIER_PAUSES = (0.05, 1.0)  # minimum and maximum seconds before a verifier's stream is reopened
DRAFTER_PAUSES = (0.2, 2.0)
VERIFIER_LOST_SECONDS = 30.0  # seconds without a verifier after which the request ends
VERIFIER_BUSY_SECONDS = 600.0  # the request ends after this many seconds of only Busy errors
# maximum size of a proposal in bytes; a full tree with its distributions is smaller
LARGEST_PROPOSAL = 256 << 10

ToVerifier: TypeAlias = Decoding | EncodedProposal | Proposal | Flow
ToDrafter: TypeAlias = Drafting | Commit
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Services:
    """The services that all relays of a cell share. `numbers` yields a new ID for each stream."""

    verifier: ServiceLink[ToVerifier, Commit]
    drafter: ServiceLink[ToDrafter, EncodedProposal]
    timer: Timer
    numbers: Iterator[int]


class Relay:
    """Relays one request. Calls `changed` when `steps` has new steps or the relay has ended."""

    def __init__(
        self, request: RunRequest, services: Services, changed: Callable[[], None]
    ) -> None:
        self.generation = Generation.of(request)
        self.steps = deque[Step]()
        self.ended = False
        self.error: TandemError | None = None
        self._request = request
        self._changed = changed
        self._numbers = services.numbers
        self._timer = timer = services.timer
        alone = request.shape.method is Method.SUFFIX
        self._drafts = request.shape.levels > 0 and not alone and request.max_new_tokens > 0
        self._watch = DraftWatch(request.shape.levels > 0, alone)
        self._backoff = DraftBackoff()
        in_lockstep = self._drafts and request.sampling.rule is not Rule.MATCH
        self._paused = False
        self._drafter_may_open = False
        self._last_step = self._timer.now()
        self._drafter = ""  # name of the drafter that sent the newest proposal
        self._reported_drafter = ""  # name of the drafter in the newest step
        self.verifier: SessionStream[ToVerifier, Commit] = SessionStream(
            services.verifier, timer, self._open_verifier, self._on_commit, self._on_verifier_error
        )
        self.drafter: SessionStream[ToDrafter, EncodedProposal] = SessionStream(
            services.drafter, timer, self._open_drafter, self._on_proposal, self._on_drafter_error
        )
        self._lockstep = Lockstep(self._timer, self.verifier.send) if in_lockstep else None
        self.verifier.link.subscribe(self.verifier)
        if self._drafts:
            self.drafter.link.subscribe(self.drafter)
        self._open_verifier()

    def take(self) -> Step:
        """Take the oldest step from the queue."""
        step = self.steps.popleft()
        if self._paused and len(self.steps) < RESUME_AT:
            self._pause(False)
        return step

    def end(self, error: TandemError | None = None) -> None:
        """End the relay and have both services forget the session."""
        if self.ended:
            return
        self.ended, self.error = True, error
        if self._lockstep:
            self._lockstep.stop()
        self.verifier.close(self.generation.session_id)
        self.drafter.close(self.generation.session_id)
        self._changed()

    def _open_verifier(self) -> None:
        """Open a stream at the verifier. In lockstep, the drafter's stream is reopened too, because
        its proposals refer to what was sent on the verifier's stream. Without lockstep, the
        drafter's stream is opened at the first commit: a drafter may share a machine with the
        verifier, and must not delay the first token.
        """
        if not self.verifier.link.connected:
            self.verifier.lost()
            return
        generation = self.generation
        opening = Decoding(
            generation.context(),
            generation.sampling,
            generation.until,
            generation.stop_token_ids,
            self._lockstep is not None,
            suffix_shape=NO_DRAFT_SHAPE if self._lockstep else self._request.shape,
            known=self._request.known,
            request_id=self._request.request_id,
            traceparent=self._request.traceparent,
            group=generation.group,
            forced=0 if self._lockstep else self._request.shape.levels,
            prompt_logprobs=generation.wanted_prompt_logprobs,
        )
        self._paused, self._drafter_may_open = False, self._lockstep is not None
        self.verifier.start(next(self._numbers), opening.context.turn, opening)
        if self._lockstep:
            self._lockstep.opened()
        self._open_drafter()
        self._await_proposal()

    def _open_drafter(self) -> None:
        self.drafter.stop()
        ready = self._drafter_may_open and self.verifier.opened
        if not (self._drafts and ready and self.drafter.link.connected):
            return
        opening = Drafting(
            self.generation.context(),
            self.generation.sampling,
            self._request.shape,
            self._lockstep is not None,
            request_id=self._request.request_id,
            traceparent=self._request.traceparent,
        )
        self._backoff = DraftBackoff()
        self.drafter.start(next(self._numbers), opening.context.turn, opening)

    def _await_proposal(self) -> None:
        """In lockstep, wait for a proposal for the verifier; if none comes, send an empty one."""
        if self._lockstep:
            round_trip = self.verifier.link.round_trip
            self._lockstep.wait(self.generation.length, self.drafter.opened, round_trip)

    def _on_commit(self, commit: Commit) -> None:
        self.steps.append(step := self._step(commit))
        if self._lockstep and not step.prompt_logprobs:
            self._lockstep.committed(commit)
        if self.generation.finish:
            self.end()
            return
        if step.prompt_logprobs:
            self._changed()
            return
        if not self._drafter_may_open:
            self._drafter_may_open = True
            self._open_drafter()
        else:
            self._inform_drafter(commit)
        self._await_proposal()
        if not self._paused and len(self.steps) > PAUSE_AT:
            self._pause(True)
        self._changed()

    def _step(self, commit: Commit) -> Step:
        """Add a commit to the text and return it as a step for the client."""
        generation, now = self.generation, self._timer.now()
        reported = generation.take_prompt_logprobs(commit.start, commit.logprobs)
        tokens = generation.extend(commit.start, commit.tokens)
        seconds, self._last_step = now - self._last_step, now
        before, generation.group = generation.group, self.verifier.link.group(self.verifier.number)
        known, self._reported_drafter = self._reported_drafter, self._drafter
        paused = self._backoff.paused(now)
        return Step(
            commit.committing(tokens),
            seconds,
            finish=generation.finish,
            matched_token_id=generation.matched_token_id,
            drafter_switches=self.drafter.switches,
            verifier_switches=self.verifier.switches,
            drafter_round_trip=self.drafter.link.round_trip,
            verifier_round_trip=self.verifier.link.round_trip,
            fallback=None
            if reported
            else self._watch.stepped(commit, self._drafts, self.drafter.opened, paused),
            verifier_group=generation.group if generation.group != before else "",
            drafter=self._drafter if self._drafter != known else "",
            prompt_logprobs=reported,
        )

    def _inform_drafter(self, commit: Commit) -> None:
        """Send the commit to the drafter unless it is paused. In lockstep, every commit is sent."""
        due: Commit | None = commit
        if not self._lockstep:
            round_trip = self.drafter.link.round_trip + self.verifier.link.round_trip
            due = self._backoff.stepped(commit, self._timer.now(), round_trip)
        if due:
            self.drafter.send(due)

    def _on_proposal(self, proposal: EncodedProposal) -> None:
        if proposal.size <= LARGEST_PROPOSAL:
            lockstep = self._lockstep
            if not lockstep or lockstep.proposal_came(proposal.behind, self.generation.length):
                self._watch.arrived = self._backoff.arrived = True
                self._drafter = self.drafter.link.replica(self.drafter.number)
                self.verifier.send(replace(proposal, awaited=True) if lockstep else proposal)

    def _pause(self, paused: bool) -> None:
        """Pause the verifier because the client reads too slowly, or resume it."""
        self._paused = paused
        self.verifier.send(Flow(paused))

    def _on_verifier_error(self, error: TandemError) -> None:
        """Reopen the verifier's stream, or end the relay if the error is permanent or lasts too
        long.
        """
        if self._lockstep:
            self._lockstep.stop()
        retry_after = error.retry_after if isinstance(error, Busy) else 0.0
        limit = VERIFIER_BUSY_SECONDS if retry_after else VERIFIER_LOST_SECONDS
        if _may_retry(error) and self.verifier.waited < limit:
            self.verifier.retry(*VERIFIER_PAUSES, retry_after)
        else:
            self.end(error)

    def _on_drafter_error(self, error: TandemError) -> None:
        """Reopen the drafter's stream, unless the drafter can never serve this request."""
        if _may_retry(error):
            retry_after = error.retry_after if isinstance(error, Busy) else 0.0
            self.drafter.retry(*DRAFTER_PAUSES, retry_after)
        else:
            log.warning("no proposals", problem=str(error), request_id=self._request.request_id)
            self._drafts = False
        self._await_proposal()


def _may_retry(error: TandemError) -> bool:
    """Return whether opening the stream again may succeed after this error."""
    return isinstance(error, SessionMiss) or is_transient(error)
