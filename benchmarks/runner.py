"""Many generations at once through the orchestrator's own rounds, with any drafter and verifier."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import mean

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
ASKED = 1e-3  # seconds: no drafter answers sooner, and not to ask takes none


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens that were written in so many seconds, and the rounds of each generation."""

    tokens: int
    seconds: float
    rounds: Sequence[Sequence[Round]]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def to_own(paces: Sequence[Pace]) -> float | None:
    """The rate of rounds to that of those among them that asked for no draft: what drafts and
    trials won or lost. Both are of the same minutes, so there is little noise in it. None where
    most rounds asked for one. Reading prompts for the verifier is in neither.
    """
    all_ = [rounds for pace in paces for rounds in pace.rounds if rounds]
    later = [each for rounds in all_ for each in rounds[1:]]
    plain = [each.verify_seconds for each in later if each.propose_seconds < ASKED]
    if 2 * len(plain) < len(later):
        return None
    tokens = sum(len(each.advance.tokens) for rounds in all_ for each in rounds)
    seconds = sum(each.propose_seconds for rounds in all_ for each in rounds)
    seconds += sum(each.verify_seconds for each in later) + mean(plain) * len(all_)
    return tokens * mean(plain) / seconds


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
            rounds: list[Round] = []
            async with places:
                await self._run(generation, policy(), rounds)
            return generation, rounds

        counts = [count] * len(prompts)
        return await asyncio.gather(*map(one, self._generations(prompts, counts, sampling)))

    async def pace(
        self,
        prompts: Sequence[Tokens],
        counts: Sequence[int],
        sampling: SamplingParams,
        policy: Callable[[], Policy],
        at_once: int = AT_ONCE,
    ) -> Pace:
        """The same, of so many tokens each, while all places are taken: until the first ends that
        no other one follows. The rest are given up.
        """
        generations = self._generations(prompts, counts, sampling)
        rounds: list[list[Round]] = [[] for _ in generations]
        began, waiting = time.perf_counter(), zip(generations, rounds, strict=True)

        async def place() -> None:
            for generation, own in waiting:
                await self._run(generation, policy(), own)

        places = [asyncio.create_task(place()) for _ in range(at_once)]
        ended, others = await asyncio.wait(places, return_when=asyncio.FIRST_COMPLETED)
        written = sum(len(each.completion) for each in generations)
        seconds, done = time.perf_counter() - began, [list(own) for own in rounds]
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.gather(*ended)  # whatever went wrong is raised
        return Pace(written, seconds, done)

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

    async def _run(self, generation: Generation, policy: Policy, rounds: list[Round]) -> None:
        """All rounds of a generation, which are noted; its sessions are closed."""
        try:
            while generation.finish is None:
                rounds.append(await run_round(generation, self.drafter, self.verifier, policy))
        finally:
            for service in (self.drafter, self.verifier):
                with suppress(TandemError):  # the service reclaims idle sessions by itself
                    await service.close(generation.session_id)
