"""Many generations at once through the orchestrator's own rounds, with any drafter and verifier."""

from __future__ import annotations

import asyncio
import secrets
import time
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

        async def one(generation: Generation) -> Told:
            async with places:
                return generation, await self._rounds(generation, policy())

        counts = [count] * len(prompts)
        return await asyncio.gather(*map(one, self._generations(prompts, counts, sampling)))

    async def rate(
        self,
        prompts: Sequence[Tokens],
        counts: Sequence[int],
        sampling: SamplingParams,
        policy: Callable[[], Policy],
        at_once: int = AT_ONCE,
    ) -> float:
        """Tokens per second of the same, of so many tokens each, while all places are taken: until
        the first ends that no other one follows. The rest are given up.
        """
        generations = self._generations(prompts, counts, sampling)
        began, waiting = time.perf_counter(), iter(generations)

        async def place() -> None:
            for generation in waiting:
                await self._rounds(generation, policy())

        places = [asyncio.create_task(place()) for _ in range(at_once)]
        ended, others = await asyncio.wait(places, return_when=asyncio.FIRST_COMPLETED)
        written = sum(len(each.completion) for each in generations)
        seconds = time.perf_counter() - began
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.gather(*ended)  # whatever went wrong is raised
        return written / seconds

    def _generations(
        self, prompts: Sequence[Tokens], counts: Sequence[int], sampling: SamplingParams
    ) -> list[Generation]:
        return [
            Generation(
                session_id=secrets.token_bytes(codec.SESSION_ID_BYTES),
                prompt=prompt,
                sampling=replace(sampling, seed=seed),
                max_new_tokens=count,
                stop_token_ids=self.end_token_ids,
            )
            for seed, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
        ]

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
