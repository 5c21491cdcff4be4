"""Decodes one session: a job takes a step whenever it can, with the proposals that have arrived.

Each step feeds the root (the newest token) and as many proposed nodes as are worth their cost,
determines the accepted nodes, and reports the emitted tokens. In lockstep, each step waits for one
proposal and verifies all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from tandem.engine.cache.session import Session
from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.sampling.matcher import GrammarMatcher
from tandem.engine.sampling.sampler import LogitsProcessor
from tandem.engine.schedule.job_stream import JobStream
from tandem.engine.schedule.task import Job
from tandem.protos import tree
from tandem.protos.errors import InvalidRequest
from tandem.protos.streams import Commit, Decoding, Proposal
from tandem.protos.types import NO_DRAFT, Draft, TokenLogprobs
from tandem.protos.wire.drafting import draft_of
from tandem.verifier_service.acceptance import walk
from tandem.verifier_service.batched_sampling import sample_batch
from tandem.verifier_service.prompt_logprobs import read_prompt
from tandem.verifier_service.proposal_timing import ProposalTiming
from tandem.verifier_service.proposals import Proposals
from tandem.verifier_service.proposed_node import Source
from tandem.verifier_service.sources import Sources, SuffixSources
from tandem.verifier_service.target_sampler import TargetSampler


def sample_step(fed: Sequence[tuple[object, torch.Tensor]]) -> None:
    """Sample for all drafts of a step at once, before any decoding job continues."""
    sample_batch(
        [
            step_input.sampler_of(rows)
            for step_input, rows in fed
            if isinstance(step_input, DecodeJob) and len(rows)
        ]
    )


@dataclass(slots=True, eq=False)
class DecodeJob:
    """A job that decodes one call for a session. The job yields itself as its step input."""

    sessions: Sessions
    opening: Decoding
    stream: JobStream[Proposal, Commit]
    sources: Sources
    clock: Callable[[], float]
    grammar: Future[GrammarMatcher] | None = None  # None once the grammar is compiled and in use
    price: Callable[[], float] = lambda: 0.0  # the chance below which a node gets no row
    proposals: Proposals = field(init=False)
    suffixes: SuffixSources = field(init=False)
    session: Session = field(init=False)
    adjustment: LogitsProcessor = field(init=False)
    # the step's sampler, if `sample_step` created it before the job continues
    sampler: TargetSampler | None = None
    pending: tuple[int, ...] = ()  # committed tokens that have not been fed
    draft: Draft = NO_DRAFT  # nodes that the current step verifies
    expected: float = 0.0  # expected number of accepted nodes of the draft
    verified: int = 0  # number of nodes verified in all steps together
    timing: ProposalTiming = field(default_factory=ProposalTiming)
    forced_at: int = 0  # length of the text when forced tokens were last proposed

    def run(self) -> Job:
        """Decode until the text is finished; raises SessionMiss, StaleTurn, Busy, InvalidRequest,
        Internal.
        """
        context, sampling = self.opening.context, self.opening.sampling
        with self.sessions.acquire(context, 0) as self.session:
            reused = yield from read_prompt(self.sessions, self.session, self.opening, self.stream)
            if self.opening.until == context.length:
                return
            held, text = self.session.length, self.session.committed(context)
            self.adjustment = LogitsProcessor(sampling, text)
            self.pending, start = context.tokens[held - context.base :], context.length
            self.proposals = Proposals(start, min(self.opening.until, self.sessions.context_length))
            answers = self.sources.answers
            self.suffixes = SuffixSources(self.opening, text, answers, self.session.scope)
            try:
                yield from self._decode(start, reused)
            finally:
                self.suffixes.remember()

    def _decode(self, start: int, reused: int) -> Job:
        """Run decoding steps until the text is finished."""
        opened, finished = (self.session.epoch, reused), False
        while not finished:
            self.draft, self.expected = NO_DRAFT, 0.0
            sampler, self.sampler = self.sampler_of((yield self)), None
            if sampler.overflowed:
                raise self.sessions.overflowed(self.opening.context)
            accepted, token = walk(self.draft.parents, sampler.decide)
            fed = len(self.pending)
            path = tuple(self.draft.tokens[node] for node in accepted)
            order = (*range(fed), *(fed + node for node in accepted))
            self.sessions.advance(self.session, self.pending + path, order)
            tokens, finished = self.opening.cut(start, (*path, token))
            logprobs = sampler.logprobs(accepted, token)[: len(tokens)]
            self.adjustment.extend(tokens)
            if not self.opening.lockstep:
                self.sources.observe(self.proposals, self.draft, accepted)
            self._report(start, tokens, accepted, opened, logprobs, finished)
            self.pending, start = (token,), start + len(tokens)
            opened = (0, 0)

    def sampler_of(self, logits: torch.Tensor) -> TargetSampler:
        """Return the step's sampler, which is created if necessary. `logits` [1 + nodes, vocab] are
        those after the root and after each node.
        """
        self.sampler = self.sampler or TargetSampler(
            self.draft, self.opening.sampling, logits, self.adjustment
        )
        return self.sampler

    def ready(self) -> Segment | None:
        """Return the segment to feed next, or None while the job waits for something else."""
        length = self.session.length + len(self.pending)
        if self.grammar and self.grammar.done():
            self.adjustment.matcher, self.grammar = self.grammar.result(), None
        if self.stream.paused or self.grammar:
            return None
        if not self.opening.lockstep:
            self._take()
        elif not self._found(length):
            return None
        self.sessions.reserve(self.session, length + len(self.draft))
        return self._segment()

    def chances(self) -> Iterator[float]:
        """Return the chance of each proposed node to be accepted, likeliest first."""
        return iter(()) if self.opening.lockstep else self.proposals.chances()

    def segment(self, rows: int) -> Segment:
        """Return a segment with `rows` proposed nodes, or with as many as fit into memory."""
        length = self.session.length + len(self.pending)
        if not self.sessions.try_reserve(self.session, length + rows):
            rows = self.session.table.capacity - length
        self.draft, self.expected = self.proposals.draft(rows)
        return self._segment()

    def wait_seconds(self, now: float, step: float) -> float:
        """Return how many seconds to wait for proposals; 0 if no proposal is worth the wait."""
        if self.opening.lockstep or self.stream.paused:
            return 0.0
        self._take()
        promise = 0.0 if self.timing.answered else min(1.0, self.sources.drafter.frequency)
        gain = self.proposals.expected_gain(promise, self.price())
        return self.timing.wait_seconds(now, step, *gain)

    def _segment(self) -> Segment:
        return Segment(
            table=self.session.table,
            context=self.session.length,
            tokens=self.pending + self.draft.tokens,
            parents=tree.hang(len(self.pending), self.draft.parents),
            num_logits=1 + len(self.draft),
        )

    def _take(self) -> None:
        """Collect proposals: tokens that the grammar forces, proposals that have arrived, and
        suffix drafts.
        """
        inbox, matcher = self.stream.inbox, self.adjustment.matcher
        if matcher and self.forced_at != self.proposals.root.position:
            self.forced_at = self.proposals.root.position
            self.proposals.force(matcher.forced(self.opening.forced))
        news = bool(inbox)
        while inbox:
            proposal = inbox.popleft()
            before = self.proposals.arrived
            self.proposals.add(proposal, self.sources.drafter.log)
            if proposal.tokens:
                added = self.proposals.arrived > before
                self.timing.proposal_arrived(proposal.behind, proposal.arrived, added)
        trusts = self.sources.trusts
        for source, proposal in self.suffixes.proposals(
            self.proposals.sources, trusts, self.price()
        ):
            self.proposals.add(proposal, trusts[source].log, source)
            news = True
        if matcher and news:
            self.proposals.prune(matcher.following)

    def _found(self, length: int) -> bool:
        """If a proposal for a text of exactly this length has arrived, use it as the draft. Returns
        whether it has arrived. If the proposal is not a tree or is too deep, the draft stays empty.
        In a single step (`once`), InvalidRequest is raised instead.
        """
        inbox = self.stream.inbox
        while inbox and inbox[0].behind != length:
            inbox.popleft()
        if not inbox:
            return False
        try:
            draft = draft_of(inbox[0])
            levels = max(tree.depths(draft.parents), default=-1) + 1
            self.sessions.check_length("draft.tokens", length + levels)
            self.draft = draft
        except InvalidRequest:
            if self.opening.once:
                raise
        return True

    def _report(
        self,
        start: int,
        tokens: tuple[int, ...],
        accepted: Sequence[int],
        opened: tuple[int, int],
        logprobs: tuple[TokenLogprobs, ...],
        finished: bool,
    ) -> None:
        """Report the tokens that a step emitted. `opened` holds the session's epoch and the number
        of tokens reused from the cache, or zeros after the first step.
        """
        proposals, drafted = self.proposals, len(self.draft)
        awaited = self.opening.lockstep or not drafted
        found, found_accepted = (0, 0) if awaited else proposals.found(accepted)
        proposals.advance(tokens)
        self.verified += drafted
        self.suffixes.extend(tokens)
        predicted = not proposals.sources.isdisjoint((Source.DRAFTER, Source.GRAMMAR))
        self.timing.commit_sent(start + len(tokens), self.clock(), predicted)
        self.stream.emit(
            Commit(
                start=start,
                tokens=tokens,
                drafted=drafted,
                accepted=min(len(accepted), len(tokens)),
                epoch=opened[0],
                reused=opened[1],
                logprobs=logprobs,
                expected=self.expected,
                late=proposals.late,
                unused=max(0, proposals.arrived - self.verified) if finished else 0,
                found=found,
                found_accepted=min(found_accepted, len(tokens)),
            )
        )
        proposals.late = 0
