"""Many generations at once through the orchestrator's own rounds, with any drafter and verifier."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from orchestrator.generation import Generation
from orchestrator.policy import Policy
from orchestrator.ports import Drafter, Verifier
from orchestrator.rounds import Round, run_round
from protos import codec
from protos.errors import TandemError
from protos.types import SamplingParams

Tokens = tuple[int, ...]
Told = tuple[Generation, list[Round]]
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Runner:
    """A drafter and a verifier, and where generations end."""

    drafter: Drafter
    verifier: Verifier
    end_token_ids: frozenset[int]

    async def complete(
        self,
        prompts: Sequence[Tokens],
        count: int,
        sampling: SamplingParams,
        policy: Callable[[], Policy],
        at_once: int = AT_ONCE,
    ) -> list[Told]:
        """Every prompt, with its index as the seed, and all its rounds; `at_once` of them at a
        time.
        """
        places = asyncio.Semaphore(at_once)

        async def one(seed: int, prompt: Tokens) -> Told:
            generation = Generation(
                session_id=secrets.token_bytes(codec.SESSION_ID_BYTES),
                prompt=prompt,
                sampling=replace(sampling, seed=seed),
                max_new_tokens=count,
                stop_token_ids=self.end_token_ids,
            )
            async with places:
                return generation, await self._rounds(generation, policy())

        return await asyncio.gather(*(one(*each) for each in enumerate(prompts)))

    async def _rounds(self, generation: Generation, policy: Policy) -> list[Round]:
        """All rounds of a generation; its sessions are closed."""
        rounds = []
        try:
            while generation.finish is None:
                rounds.append(await run_round(generation, self.drafter, self.verifier, policy))
        finally:
            for service in (self.drafter, self.verifier):
                with suppress(TandemError):  # the service reclaims idle sessions by itself
                    await service.close(generation.session_id)
        return rounds
