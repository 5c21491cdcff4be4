"""Many more sessions than memory: everybody is served, with the same text, within the bound."""

from __future__ import annotations

import asyncio
import secrets
import sys
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil

from tandem.engine.cache.pool import position_bytes
from tandem.engine.cache.ranges import BLOCK
from tandem.engine.forward.tiles import COARSE
from tandem.engine.model.load import load
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.orchestrator.workers.worker import RoundWorkerService, drafter_link, verifier_link
from tandem.protos.service.process import announcement
from tandem.protos.transport import rpc
from tandem.protos.types import Context, Draft, SamplingParams
from tandem.v1 import rounds_pb2
from tests.conftest import Pair

SESSIONS, FITTING, PROMPT, TOKENS = 500, 50, 248, 8
SIZE = 4 * BLOCK  # positions that a session of PROMPT + TOKENS takes
MOST = 512  # rows of a step
KERNELS = 8e6  # bytes of code for steps of sizes that were forgotten


async def complete(worker: RoundWorkerService, number: int) -> list[int]:
    """The completion of a prompt of its own, without a drafter."""
    prompt = [(number * 7919 + place * 31) % 4000 + 5 for place in range(PROMPT)]
    name = secrets.token_bytes(16)
    request = rounds_pb2.RunRequest(prompt=prompt, max_new_tokens=TOKENS, session_id=name)
    context: Any = None
    return [token async for step in worker.Run(request, context) for token in step.tokens]


async def warm_up(verifier: VerifierClient) -> None:
    """A step of every size: the matrix library keeps code for each that it has met."""
    for rows in (*range(1, BLOCK + 1), *range(BLOCK, MOST + 1, COARSE)):
        nodes = min(rows, BLOCK) - 1  # wanted are their logits and one more
        draft = Draft((7,) * nodes, (-1,) * nodes)
        context = Context(secrets.token_bytes(16), 1, 0, (5,) * (rows - nodes))
        await verifier.verify(context, draft, SamplingParams())
        await verifier.close(context.session_id)


@asynccontextmanager
async def verifier(**flags: object) -> AsyncIterator[tuple[str, psutil.Process]]:
    """A process of its own, whose memory is its own: address and process."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    command = (
        sys.executable,
        "-m",
        "tandem.verifier_service",
        "--port=0",
        "--metrics-port=0",
        *words,
    )
    process = await create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL)
    try:
        address = ""
        while not address:
            assert process.stdout
            line = await process.stdout.readline()
            assert line, "it did not start"
            address = (announcement(line) or {}).get("address", "")
        yield address, psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def test_ten_times_more_sessions_than_memory_all_finish_with_the_same_text(
    embedded: Pair,
) -> None:
    model = load(embedded.target)
    kv_bytes = FITTING * SIZE * position_bytes(model.layers, model.dtype)
    del model
    limits = {"kv_bytes": kv_bytes, "context_length": MOST, "max_sessions": SESSIONS}
    async with (
        verifier(model=embedded.target, **limits) as (address, process),
        rpc.connect(address) as channel,
        rpc.connect("127.0.0.1:1") as nowhere,
        verifier_link(channel) as link,
        drafter_link(nowhere, link) as drafter,
    ):
        client, worker = VerifierClient(channel), RoundWorkerService(link, drafter)

        async def all_of(numbers: range) -> list[list[int]]:
            return await asyncio.gather(*(complete(worker, n) for n in numbers))

        await warm_up(client)
        await all_of(range(4))
        warm = highest = process.memory_info().rss
        alone = [await complete(worker, number) for number in range(0, SESSIONS, 5)]
        crowd = asyncio.ensure_future(all_of(range(SESSIONS)))
        while not crowd.done():
            highest = max(highest, process.memory_info().rss)
            assert (await client.describe(30)).cache_usage <= 1
            await asyncio.wait((crowd,), timeout=0.1)
        together = await crowd
        for _ in range(100):  # closing is asynchronous
            if not (sessions := (await client.describe(5)).sessions):
                break
            await asyncio.sleep(0.05)
    assert together[::5] == alone
    assert all(len(completion) == TOKENS for completion in together)
    assert sessions == 0
    assert kv_bytes / 2 < highest - warm <= 1.1 * kv_bytes + KERNELS, "the pool was used, and bound"
