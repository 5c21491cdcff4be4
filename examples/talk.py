"""Calls to a running drafter and verifier for the example loops, all within one session.

Each call sends all committed tokens. The example decides what to draft and what to commit.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem import models
from tandem.orchestrator.cli import launch
from tandem.orchestrator.cli.plan import Plan
from tandem.orchestrator.fleet.clients import DrafterClient, VerifierClient
from tandem.protos.errors import TandemError
from tandem.protos.service.process import configure_logging
from tandem.protos.transport import rpc
from tandem.protos.types import NO_DRAFT, Context, Draft, DraftShape, SamplingParams, Verdict
from tandem.protos.wire import codec

GREEDY = SamplingParams()
DESCRIBE_SECONDS = 30.0

DrafterOption = Annotated[
    str, typer.Option(help="address of a running drafter; by default Tandem is started")
]
VerifierOption = Annotated[
    str, typer.Option(help="address of a running verifier; by default Tandem is started")
]
TokenizerOption = Annotated[Path, typer.Option(help="model directory that has the tokenizer")]


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of Tandem's services. `orchestrator` is empty if no client API is given."""

    drafter: str
    verifier: str
    orchestrator: str = ""


@dataclass(slots=True)
class Talk:
    """One session at a drafter and a verifier. `tokens` are the committed tokens. A verdict commits
    nothing: to commit tokens, the caller appends them to `tokens`.
    """

    drafter: DrafterClient
    verifier: VerifierClient
    tokens: list[int]
    session_id: bytes = field(default_factory=lambda: secrets.token_bytes(codec.SESSION_ID_BYTES))
    turn: int = 0

    async def propose(self, shape: DraftShape, sampling: SamplingParams = GREEDY) -> Draft:
        """Return a draft that continues the committed tokens. Raises a TandemError if the call to
        the drafter fails.
        """
        proposal = await self.drafter.propose(self._context(), shape, sampling)
        return proposal.draft

    async def verify(self, draft: Draft = NO_DRAFT, sampling: SamplingParams = GREEDY) -> Verdict:
        """Return which draft nodes the verifier accepts, and the token after them. Raises a
        TandemError if the call to the verifier fails.
        """
        return await self.verifier.verify(self._context(), draft, sampling)

    async def close(self) -> None:
        """Close the session at both services. If a service cannot be reached, it later frees the
        session by itself.
        """
        for service in (self.drafter, self.verifier):
            with suppress(TandemError):
                await service.close(self.session_id)

    def _context(self) -> Context:
        """Return a context with all committed tokens. A service computes only the tokens that are
        not yet in its KV cache.
        """
        self.turn += 1
        return Context(self.session_id, self.turn, 0, tuple(self.tokens))


@asynccontextmanager
async def talking(
    drafter: DrafterClient, verifier: VerifierClient, prompt: Sequence[int]
) -> AsyncIterator[Talk]:
    """Open a session that begins with a prompt, and close it when the context ends."""
    talk = Talk(drafter, verifier, list(prompt))
    try:
        yield talk
    finally:
        await talk.close()


@asynccontextmanager
async def running(drafter: str, verifier: str, orchestrator: str = "") -> AsyncIterator[Addresses]:
    """Yield the given addresses. If no addresses are given, start Tandem inside this context, and
    yield the addresses of its services. Raises Unusable.
    """
    if drafter and verifier:
        yield Addresses(drafter, verifier, orchestrator)
        return
    if drafter or verifier or orchestrator:
        raise SystemExit("error: give the addresses of both a drafter and a verifier, or none")
    async with launch.up(Plan(models.TARGET, models.DRAFT, port=0, ray=False)) as tandem:
        yield Addresses(**tandem.addresses)


@asynccontextmanager
async def connected(at: Addresses) -> AsyncIterator[tuple[DrafterClient, VerifierClient]]:
    """Connect to the drafter and the verifier, wait until both respond, and yield a client of each.
    Raises a TandemError if one of them does not respond.
    """
    async with AsyncExitStack() as scope:
        channels = [
            await scope.enter_async_context(rpc.connect(each)) for each in (at.drafter, at.verifier)
        ]
        drafter, verifier = DrafterClient(channels[0]), VerifierClient(channels[1])
        for client in (drafter, verifier):
            await client.describe(DESCRIBE_SECONDS)
        yield drafter, verifier


def run(script: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine of an example. If a service reports an error, print it as one line, and
    exit with 1.
    """
    configure_logging("warning")
    try:
        asyncio.run(script)
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
