"""One round: propose -> verify -> advance, with one retry rule.

Read this file first. A round without a draft is plain decoding, so a lost drafter is no special
case.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    wait_random_exponential,
)

from orchestrator.generation import Advance, Cursor, Generation
from orchestrator.learning import Outcome
from orchestrator.policy import Policy
from orchestrator.ports import Drafter, Verifier
from protos import tree
from protos.errors import Busy, Internal, InvalidRequest, SessionMiss, TandemError
from protos.status import is_transient
from protos.types import NO_DRAFT, Context, Draft, Proposal, Verdict

BACK_OFF = wait_random_exponential(multiplier=0.05, max=1.0)
PATIENCE_SECONDS = 30.0  # with a verifier that is lost
BUSY_SECONDS = 600.0  # with one that is there and asks to wait; a caller's deadline ends it earlier

NO_PROPOSAL = Proposal(NO_DRAFT, 0, 0)

log = structlog.get_logger()
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did and how long each phase took, in seconds."""

    advance: Advance
    fallback: bool
    propose_seconds: float
    verify_seconds: float
    advance_seconds: float


async def run_round(
    generation: Generation, drafter: Drafter, verifier: Verifier, policy: Policy
) -> Round:
    """Advance a generation by one round; raises a TandemError when the verifier cannot be had."""
    began = time.perf_counter()
    drafter_warm, verifier_warm = generation.drafter.cached > 0, generation.verifier.cached > 0
    proposal = await propose(generation, drafter, policy)
    proposed = time.perf_counter()
    draft, verdict = await judge(generation, verifier, policy, proposal.draft)
    verified = time.perf_counter()
    advance = generation.advance(draft, verdict)
    asked = proposal is not NO_PROPOSAL
    if policy.wanted:
        policy.amount.saw(
            Outcome(
                levels=max(tree.depths(draft.parents), default=-1) + 1,
                nodes=len(draft),
                expected=min(proposal.expected, len(draft)),
                accepted=len(verdict.accepted),
                asked=asked,
                propose_seconds=proposed - began,
                draft_seconds=min(proposal.seconds, proposed - began),
                verify_seconds=verified - proposed,
                token_seconds=verdict.token_seconds,
                began=not verifier_warm,
                opened=asked and not drafter_warm,
            )
        )
    return Round(
        advance,
        fallback=policy.missed,
        propose_seconds=proposed - began,
        verify_seconds=verified - proposed,
        advance_seconds=time.perf_counter() - verified,
    )


async def propose(generation: Generation, drafter: Drafter, policy: Policy) -> Proposal:
    """The drafter's proposal; none if none is wanted now or it cannot be had."""
    shape = policy.next(generation.remaining)
    if not shape.levels:
        return NO_PROPOSAL
    try:
        proposal = await ask(
            generation,
            generation.drafter,
            lambda context: drafter.propose(context, shape, generation.sampling),
        )
    except TandemError as error:
        log.warning("no draft", reason=error.reason)
        policy.failed()
        return NO_PROPOSAL
    generation.drafted(proposal)
    if not proposal.draft.tokens:
        policy.drafted()  # nothing to propose is an answer too
    return proposal


async def judge(
    generation: Generation, verifier: Verifier, policy: Policy, draft: Draft
) -> tuple[Draft, Verdict]:
    """What was verified and the verdict.

    A drafter is not trusted: if its draft is unfit, or more than the target can compute, the round
    goes on without it.
    """
    if draft.tokens:
        try:
            verdict = await verify(generation, verifier, draft)
        except (InvalidRequest, Internal) as error:
            log.warning("an unfit draft", problem=str(error))
            policy.failed()
        else:
            policy.drafted()
            return draft, verdict
    return NO_DRAFT, await verify(generation, verifier, NO_DRAFT)


async def verify(generation: Generation, verifier: Verifier, draft: Draft) -> Verdict:
    """The verifier's verdict, asked for again, with back-off, while it may still come."""
    async for attempt in AsyncRetrying(
        retry=retry_if_exception(is_transient),
        wait=pause,
        stop=Patience(),
        reraise=True,
    ):
        with attempt:
            return await ask(
                generation,
                generation.verifier,
                lambda context: verifier.verify(context, draft, generation.sampling),
            )
    raise AssertionError("the last attempt returns or raises")


def pause(state: RetryCallState) -> float:
    """Seconds until the next attempt: longer each time, and as long as a busy service asks for."""
    error = state.outcome.exception() if state.outcome else None
    return BACK_OFF(state) + (error.retry_after if isinstance(error, Busy) else 0.0)


class Patience:
    """When there is no point in another attempt: a verifier that is lost has less time than one
    that is there and asks to wait, and time spent waiting does not count against it.
    """

    def __init__(self) -> None:
        self._lost_since: float | None = None

    def __call__(self, state: RetryCallState) -> bool:
        """Asked after every failed attempt."""
        now = state.outcome_timestamp or state.start_time
        if state.outcome and isinstance(state.outcome.exception(), Busy):
            self._lost_since = None
            return now - state.start_time >= BUSY_SECONDS
        if self._lost_since is None:
            self._lost_since = state.start_time if state.attempt_number == 1 else now
        return now - self._lost_since >= PATIENCE_SECONDS


async def ask(
    generation: Generation, cursor: Cursor, call: Callable[[Context], Awaitable[Answer]]
) -> Answer:
    """Call with the next context; a service that does not hold the session is told everything,
    once.
    """
    try:
        return await call(generation.context(cursor))
    except SessionMiss:
        cursor.forget()
        return await call(generation.context(cursor))
