"""Count the failures that gRPC and OpenAI clients see during rolling updates of every service.

    python -m tandem.benchmarks.rolling --updates 20

Each service runs in two processes. The cells are behind a load balancer that sends new connections
to cells that are SERVING. One process after another is asked to stop and then started again. The
clients are plain gRPC channels and OpenAI's SDK, both with their default settings. Each client
sends one request after another, and compares every answer with its first answer to the same prompt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from grpc import aio
from openai import AsyncOpenAI, OpenAIError
from rich.progress import track
from rich.table import Table

from tandem import models
from tandem.benchmarks.chaos.plan import Fault, Kind
from tandem.benchmarks.chaos.system import CELL, DRAFTER, HOST, VERIFIER, System, running
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.benchmarks.peers.balancer import balanced
from tandem.benchmarks.peers.prompts import story_prompts
from tandem.protos.errors import TandemError
from tandem.protos.service.tasks import background
from tandem.protos.transport import rpc
from tandem.protos.transport.health import is_serving
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc

SERVICE = "tandem.v1.OrchestratorService"
POLL_SECONDS = 0.5  # seconds between two health checks of the cells
LAME_DUCK_SECONDS = 5.0
STEADY_SECONDS = 2.0  # seconds from the end of one update to the next
PROMPTS = 4
RIGHT = "as before"
Ask: TypeAlias = Callable[[str], Awaitable[str]]
Seen: TypeAlias = "Counter[tuple[str, str]]"


class Ready:
    """Tracks which cells are SERVING, by their index in the list of cell addresses."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._turn = 0
        self._now = list(range(len(addresses)))

    def next(self) -> int:
        """Return the index of the next cell that is SERVING, in round-robin order."""
        self._turn += 1
        return self._now[self._turn % len(self._now)]

    async def follow(self) -> None:
        """Check every POLL_SECONDS which cells are SERVING, until cancelled. If no cell is SERVING,
        keep the result of the last check in which a cell was SERVING.
        """
        while True:
            found = await asyncio.gather(*map(_serving, self._addresses))
            self._now = [number for number, up in enumerate(found) if up] or self._now
            await asyncio.sleep(POLL_SECONDS)


async def _serving(address: str) -> bool:
    async with rpc.connect(address) as channel:
        return await is_serving(channel, SERVICE, POLL_SECONDS)


@asynccontextmanager
async def over_grpc(address: str, tokens: int) -> AsyncIterator[Ask]:
    """Yield a function that sends a prompt over a gRPC channel with default settings."""
    async with aio.insecure_channel(address) as channel:
        stub: Any = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)

        async def ask(prompt: str) -> str:
            request = api.GenerateRequest(text=prompt)
            request.stopping.max_new_tokens, request.sampling.temperature = tokens, 0
            call = stub.StreamGenerate(api.StreamGenerateRequest(request=request))
            return "".join([event.chunk.text async for event in call])

        yield ask


@asynccontextmanager
async def over_http(address: str, tokens: int) -> AsyncIterator[Ask]:
    """Yield a function that sends a prompt with OpenAI's SDK and its default settings."""
    async with AsyncOpenAI(base_url=f"http://{address}/v1", api_key="-") as client:

        async def ask(prompt: str) -> str:
            stream = await client.completions.create(
                model="target", prompt=prompt, max_tokens=tokens, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

        yield ask


async def live(name: str, ask: Ask, prompts: list[str], seen: Seen) -> None:
    """Act as one client: send prompts until cancelled, and count the results in `seen`."""
    right: dict[str, str] = {}
    for prompt in cycle(prompts):
        try:
            text = await ask(prompt)
        except (aio.AioRpcError, OpenAIError) as error:
            problem = error.details() if isinstance(error, aio.AioRpcError) else str(error)
            seen[name, f"failed: {problem}"] += 1
        else:
            same = right.setdefault(prompt, text) == text
            seen[name, RIGHT if same else "another text"] += 1


async def run(system: System, ports: list[int], updates: int, clients: int, tokens: int) -> Seen:
    """Restart `updates` processes one after the other while clients send requests. Returns how
    often each kind of client has seen each result. `ports` are the HTTP ports of the cells.
    """
    seen: Seen = Counter()
    ready, prompts = Ready(system.addresses), story_prompts()[:PROMPTS]
    kinds = (
        ("gRPC", over_grpc, [member.port for member in system.members[CELL]]),
        ("OpenAI SDK", over_http, ports),
    )
    each_in_turn = zip(*(system.members[role] for role in (CELL, VERIFIER, DRAFTER)), strict=True)
    plan = islice(cycle(chain.from_iterable(each_in_turn)), updates)
    async with AsyncExitStack() as scope:
        await scope.enter_async_context(background(ready.follow()))
        for name, over, at in kinds:
            choose = partial(_address, ready, at)
            where = await scope.enter_async_context(balanced(choose))
            for _ in range(clients):
                ask = await scope.enter_async_context(over(where, tokens))
                await scope.enter_async_context(background(live(name, ask, prompts, seen)))
        for member in track(list(plan), "updates"):
            await member.suffer(Fault(Kind.TERM, member.role, 0, 0.0, 0.0))
            await asyncio.sleep(STEADY_SECONDS)
    return seen


def _address(ready: Ready, ports: list[int]) -> str:
    return f"{HOST}:{ports[ready.next()]}"


def main(
    target: Annotated[Path, typer.Option(help="model directory of the verifier")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory of the drafter")] = models.DRAFT,
    updates: Annotated[
        int, typer.Option(help="number of restarts, one after the other", min=1)
    ] = 20,
    clients: Annotated[int, typer.Option(help="clients of each kind", min=1)] = 2,
    tokens: Annotated[int, typer.Option(help="tokens of an answer", min=1)] = 60,
    file: report.JsonFile = None,
) -> None:
    """Restart services one after the other while clients send requests. Exits with 1 if a client
    saw a failure or an answer that differs from its first answer.
    """
    ports: list[int] = []

    def flags() -> list[str]:
        ports.append(rpc.free_port(HOST))
        return ["--http-port", str(ports[-1]), "--lame-duck-seconds", str(LAME_DUCK_SECONDS)]

    async def whole() -> Seen:
        async with running(target, draft, 2, 2, 2, flags) as system:
            return await run(system, ports, updates, clients, tokens)

    try:
        seen = asyncio.run(whole())
    except TandemError as error:
        raise SystemExit(f"error: {error}") from None
    table, rows = Table("client", "what it saw", "requests"), []
    for (name, what), count in sorted(seen.items()):
        table.add_row(name, what, f"{count}")
        rows.append({"client": name, "saw": what, "requests": count})
    report.publish(f"{updates} updates: {described('one thread per model')}", table, rows, file)
    if any(what != RIGHT for _, what in seen):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
