"""Services that are killed under load, as real processes: the text stays what it is, and guesses
count again soon after the drafter is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tandem.benchmarks.peers.checkout import HERE, address, child
from tandem.orchestrator.fleet.clients import DrafterClient, VerifierClient
from tandem.protos.transport import rpc
from tandem.v1 import orchestrator_pb2 as api
from tests.conftest import Pair, Services, serve_all
from tests.system.test_same_text import ask

TOKENS = 300
STREAMS = 4
BACK_SECONDS = 5.0  # from when the drafter serves again to a step that yields several tokens; two
# on a machine that does nothing else


@dataclass
class Fleet:
    """A verifier and a drafter in processes of their own; one that is killed may come back."""

    pair: Pair
    stack: AsyncExitStack
    processes: dict[str, Any] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    async def start(self, module: str) -> float:
        """Start it, where it was if it was before; returns when it served."""
        model = self.pair.draft if module == "drafter_service" else self.pair.target
        port = self.addresses.get(module, ":0").rpartition(":")[2]
        flags = ("--model", str(model), "--port", port, "--draft-cost", "0", "--log-level", "error")
        process = await self.stack.enter_async_context(child(HERE, module, *flags))
        self.processes[module] = process
        self.addresses[module] = await address(process)
        return time.perf_counter()

    async def kill(self, module: str) -> None:
        """At once, without a word."""
        self.processes[module].kill()
        await self.processes[module].wait()


@asynccontextmanager
async def fleet(pair: Pair) -> AsyncIterator[tuple[Fleet, Any]]:
    """Both services behind an orchestrator; yields them and a stub of the client API."""
    async with AsyncExitStack() as stack:
        both = Fleet(pair, stack)
        for module in ("drafter_service", "verifier_service"):
            await both.start(module)
        drafter, verifier = both.addresses["drafter_service"], both.addresses["verifier_service"]
        clients = [
            make(await stack.enter_async_context(rpc.connect(each)))
            for make, each in ((DrafterClient, drafter), (VerifierClient, verifier))
        ]
        services = Services(pair, drafter, verifier, *clients)
        tandem = await stack.enter_async_context(serve_all(services, ray=False))
        yield both, tandem.stub


Steps = list[tuple[float, list[int]]]


async def nothing(found: Sequence[Steps]) -> None:
    pass


async def answers(
    stub: Any, amid: Callable[[Sequence[Steps]], Awaitable[None]] = nothing
) -> list[Steps]:
    """Several streams at once, step by step with when it came, and what is done amid them."""
    found: list[Steps] = [[] for _ in range(STREAMS)]

    async def read(number: int) -> None:
        request = ask("Once upon a time there was", temperature=0.7, seed=number, tokens=TOKENS)
        request.stopping.ignore_eos = True
        async for event in stub.StreamGenerate(api.StreamGenerateRequest(request=request)):
            if event.HasField("chunk"):
                found[number].append((time.perf_counter(), list(event.chunk.token_ids)))

    async with asyncio.TaskGroup() as group:
        for number in range(STREAMS):
            group.create_task(read(number))
        await amid(found)
    return found


async def settled(found: Sequence[Steps], steps: int) -> None:
    """Until each stream has made so many steps more."""
    goals = [len(each) + steps for each in found]
    while any(len(each) < goal for each, goal in zip(found, goals, strict=True)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def drafted(found: Sequence[Steps], after: float) -> list[float]:
    """When the steps after a time came that yielded several tokens."""
    return [when for each in found for when, step in each if len(step) > 1 and when > after]


def tokens(found: Sequence[Steps]) -> list[list[int]]:
    return [[token for _, step in each for token in step] for each in found]


async def test_guesses_count_again_soon_after_a_killed_drafter_is_back(embedded: Pair) -> None:
    async with fleet(embedded) as (both, stub):
        calm = await answers(stub)

        async def amid(found: Sequence[Steps]) -> None:
            await settled(found, 10)
            await both.kill("drafter_service")

        struck = [await answers(stub, amid)]
        starting = asyncio.create_task(both.start("drafter_service"))
        while not starting.done():
            struck.append(await answers(stub))
        back = starting.result()
        async with asyncio.timeout(60):
            while not drafted(struck[-1], back):
                struck.append(await answers(stub))
    assert all(tokens(each) == tokens(calm) for each in struck)
    assert min(when for each in struck for when in drafted(each, back)) - back < BACK_SECONDS


async def test_a_killed_verifier_costs_time_and_no_token(embedded: Pair) -> None:
    async with fleet(embedded) as (both, stub):
        calm = await answers(stub)

        async def amid(found: Sequence[Steps]) -> None:
            await settled(found, 10)
            await both.kill("verifier_service")
            await both.start("verifier_service")

        assert tokens(await answers(stub, amid)) == tokens(calm)
