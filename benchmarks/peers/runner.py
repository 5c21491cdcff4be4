"""Run many generations at once. Each generation runs in lockstep: in every round, the drafter
proposes a draft, and then the verifier returns which part of the draft it accepts.

Results do not depend on timing, so the numbers of drafted and accepted tokens depend only on the
models.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from tandem.orchestrator.rounds.generation import Generation
from tandem.protos.errors import TandemError
from tandem.protos.types import (
    NO_DRAFT,
    Context,
    Draft,
    DraftShape,
    ProposeResult,
    SamplingParams,
    Verdict,
)
from tandem.protos.wire import codec

Tokens = tuple[int, ...]
CONCURRENCY = 8


class Drafter(Protocol):
    """A drafter that proposes one draft per call, in this process or in another."""

    async def propose(
        self, context: Context, shape: DraftShape, sampling: SamplingParams
    ) -> ProposeResult:
        """Propose a draft for the context."""

    async def close(self, session_id: bytes) -> None:
        """Free the session."""


class Verifier(Protocol):
    """A verifier that verifies one draft per call."""

    async def verify(self, context: Context, draft: Draft, sampling: SamplingParams) -> Verdict:
        """Verify a draft: return the accepted nodes and the next token."""

    async def close(self, session_id: bytes) -> None:
        """Free the session."""


@dataclass(frozen=True, slots=True)
class Round:
    """The tokens that one round emitted: the accepted draft tokens and the next token. `drafted`
    and `accepted` are the numbers of drafted and of accepted tokens.
    """

    tokens: Tokens
    drafted: int
    accepted: int


CompletionRounds = tuple[Tokens, list[Round]]
"""The tokens of a completion, and the rounds that generated them."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Generates completions with a drafter and a verifier. A generation ends at any of the tokens
    `end_token_ids`.
    """

    drafter: Drafter
    verifier: Verifier
    end_token_ids: frozenset[int]

    async def complete(
        self,
        prompts: Sequence[Tokens],
        count: int,
        sampling: SamplingParams,
        shape: DraftShape,
        at_once: int = CONCURRENCY,
    ) -> list[CompletionRounds]:
        """Complete all prompts, at most `at_once` of them at the same time. The seed of each
        completion is the index of its prompt. Returns each completion with its rounds. Raises a
        TandemError if a call to the drafter or to the verifier fails.
        """
        places = asyncio.Semaphore(at_once)

        async def one(seed: int, prompt: Tokens) -> CompletionRounds:
            session_id = secrets.token_bytes(codec.SESSION_ID_BYTES)
            own = replace(sampling, seed=seed)
            generation = Generation(session_id, prompt, own, count, self.end_token_ids)
            async with places:
                rounds = await self._run(generation, shape)
            return tuple(generation.completion), rounds

        return await asyncio.gather(*(one(*each) for each in enumerate(prompts)))

    async def _run(self, generation: Generation, shape: DraftShape) -> list[Round]:
        """Run all rounds of a generation, then close its sessions at both services."""
        rounds: list[Round] = []
        try:
            while generation.finish is None:
                rounds.append(await self._round(generation, shape))
        finally:
            for service in (self.drafter, self.verifier):
                with suppress(TandemError):  # the service reclaims idle sessions by itself
                    await service.close(generation.session_id)
        return rounds

    async def _round(self, generation: Generation, shape: DraftShape) -> Round:
        draft, sampling = NO_DRAFT, generation.sampling
        shape = within(shape, generation.until - generation.length - 1)
        if shape.levels:
            proposal = await self.drafter.propose(generation.context(), shape, sampling)
            draft = proposal.draft
        verdict = await self.verifier.verify(generation.context(), draft, sampling)
        path = [draft.tokens[node] for node in verdict.accepted]
        tokens = generation.extend(generation.length, [*path, verdict.next_token])
        return Round(tokens, len(draft), min(len(path), len(tokens)))


def within(shape: DraftShape, levels: int) -> DraftShape:
    """Limit a draft shape to `levels` levels. Deeper nodes would exceed the generation's length."""
    levels = min(shape.levels, levels)
    nodes = shape.nodes if shape.branches > 1 else min(shape.nodes, levels)
    return replace(shape, levels=levels, nodes=nodes)
