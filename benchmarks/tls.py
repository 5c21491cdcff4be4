"""Measure what TLS and authentication cost. Two Tandem systems with the same models take turns: a
plain one without TLS and authentication, and a locked one with TLS and a token.

Both systems run all the time, but only the system whose turn it is gets requests. Other activity on
the machine therefore affects both systems alike.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Annotated

import typer
from rich.table import Table

from tandem import AsyncClient
from tandem.benchmarks.figures import report
from tandem.benchmarks.figures.machine import described
from tandem.orchestrator.cli import certificates
from tandem.orchestrator.cli.launch import up
from tandem.orchestrator.cli.plan import Plan
from tandem.protos.errors import TandemError

PROMPT = "Once upon a time there was a little"


@dataclass(frozen=True, slots=True)
class Figures:
    """The results for one number of concurrent streams. `plain` and `locked` are the rounds per
    second of both systems. `cost` is the relative cost of TLS and authentication. `added_ms` is the
    milliseconds that TLS and authentication add to each round of a stream.
    """

    streams: int
    plain: float
    locked: float
    cost: float
    added_ms: float


@asynccontextmanager
async def both() -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """Start two systems, and yield a client of each. The first system has no TLS and no
    authentication. The second system has TLS on every connection, and its client authenticates with
    a token.
    """
    token = secrets.token_hex(24)
    with tempfile.TemporaryDirectory(prefix="tandem-") as name:
        folder = Path(name)
        certificates.make(folder)
        digest = hashlib.sha256(token.encode()).hexdigest()
        clients, settings = folder / "clients.yaml", folder / "tandem.yaml"
        clients.write_text(f"client: {{token_sha256: {digest}}}\n")
        settings.write_text(f"orchestrator: {{clients: {clients}}}\n")
        async with AsyncExitStack() as scope:
            plain = await scope.enter_async_context(up(Plan(port=0, ray=False)))
            plan = Plan(port=0, ray=False, config=settings, certificates=folder)
            locked = await scope.enter_async_context(up(plan))
            one = AsyncClient(plain.addresses["orchestrator"])
            ca = folder / "ca.pem"
            other = AsyncClient(locked.addresses["orchestrator"], tls_ca=ca, token=token)
            yield (
                await scope.enter_async_context(one),
                await scope.enter_async_context(other),
            )


async def turn(client: AsyncClient, streams: int, tokens: int, seed: int) -> float:
    """Run `streams` requests concurrently, and return their rounds per second in total."""
    options = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0.7}
    began = monotonic()
    work = (client.generate(PROMPT, seed=seed + each, **options) for each in range(streams))
    answers = await asyncio.gather(*work)
    return sum(each.speculation.num_spec_steps for each in answers) / (monotonic() - began)


async def measure(streams: int, turns: int, tokens: int) -> Figures:
    """Measure both systems in turns, in alternating order. Returns the median of each metric over
    all turns.
    """
    async with both() as clients:
        for client in clients:
            await turn(client, streams, tokens, 0)
        found: tuple[list[float], list[float]] = ([], [])
        for number in range(turns):
            for which in (0, 1) if number % 2 else (1, 0):
                found[which].append(await turn(clients[which], streams, tokens, number * streams))
    plain, locked = map(median, found)
    cost = median(one / other - 1 for one, other in zip(*found, strict=True))
    added = median(1000 * streams * (1 / b - 1 / a) for a, b in zip(*found, strict=True))
    return Figures(streams, plain, locked, cost, added)


def main(
    streams: Annotated[str, typer.Option(help="numbers of parallel streams, with commas")] = "1,8",
    turns: Annotated[int, typer.Option(help="turns of each system", min=1)] = 15,
    tokens: Annotated[int, typer.Option(help="tokens of each answer", min=1)] = 200,
    file: report.JsonFile = None,
) -> None:
    """Measure the rounds per second with and without TLS and authentication."""
    try:
        found = [asyncio.run(measure(int(n), turns, tokens)) for n in streams.split(",")]
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    shown = Table("streams", "rounds/s, plain", "rounds/s, locked", "cost", "ms more per round")
    for each in found:
        speeds = f"{each.plain:.0f}", f"{each.locked:.0f}"
        shown.add_row(str(each.streams), *speeds, f"{each.cost:.1%}", f"{each.added_ms:.3f}")
    heading = f"{turns} turns of each, {tokens} tokens: {described('the embedded pair')}"
    report.publish(heading, shown, [asdict(each) for each in found], file)


if __name__ == "__main__":
    typer.run(main)
