"""With many more sessions than memory, every session is served with the same text, within the bound
on memory.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest
from transformers import PreTrainedModel

from tandem.engine.cache.pages import PAGE
from tandem.engine.cache.pool import position_bytes
from tandem.engine.forward.tiles import ROW_MULTIPLE, UNPADDED_ROWS
from tandem.engine.model.load import load
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.orchestrator.links.relays import Relays, drafter_link, verifier_link
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.orchestrator.rounds.generation import RunRequest
from tandem.protos.service.process import announcement
from tandem.protos.transport import rpc
from tandem.protos.types import Context, Draft, SamplingParams
from tests import reference
from tests.served import Pair, serve_all, serve_models
from tests.system.test_same_text import ask
from tests.waiting import LIMIT, PAUSE, until

SESSIONS, FITTING, PROMPT, TOKENS = 300, 30, 248, 8
SIZE = 4 * PAGE  # number of positions of a session of PROMPT + TOKENS
MOST = 512  # most rows of a step
STREAMS, MANY = 6, 300  # number of streams with many tokens, and their number of tokens
NEVER = 1e6  # seconds until an idle session is evicted
KERNELS = 8e6  # bytes of code for sizes of steps that the warm-up lacks


async def complete(relays: Relays, number: int) -> list[int]:
    """Return the completion of a prompt that no other request has, without a drafter."""
    prompt = tuple((number * 7919 + place * 31) % 4000 + 5 for place in range(PROMPT))
    request = RunRequest("", secrets.token_bytes(16), prompt, SamplingParams(), TOKENS)
    return [token async for step in relays.run(request) for token in step.tokens]


async def warm_up(verifier: VerifierClient) -> None:
    """Run a step of every size, because the matrix library keeps code for each size that it has
    met.
    """
    for rows in (*range(1, UNPADDED_ROWS + 1), *range(UNPADDED_ROWS, MOST + 1, ROW_MULTIPLE)):
        # the logits of the nodes and of one more row are wanted
        nodes = min(rows, UNPADDED_ROWS) - 1
        draft = Draft((7,) * nodes, (-1,) * nodes)
        context = Context(secrets.token_bytes(16), 1, 0, (5,) * (rows - nodes))
        await verifier.verify(context, draft, SamplingParams())
        await verifier.close(context.session_id)


@asynccontextmanager
async def verifier(*words: str) -> AsyncIterator[tuple[str, psutil.Process]]:
    """Start a verifier in its own process, so that its memory can be measured; yields its address
    and process.
    """
    command = (sys.executable, "-m", "tandem.verifier_service", "--port=0", "--metrics-port=0")
    process = await create_subprocess_exec(*command, *words, stdout=PIPE, stderr=DEVNULL)
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


@pytest.mark.long("decodes 330 texts of 248 tokens, and meets every size of a step")
async def test_ten_times_more_sessions_than_memory_all_finish_with_the_same_text(
    embedded: Pair,
) -> None:
    model = load(embedded.target)
    kv_bytes = FITTING * SIZE * position_bytes(model.layers, model.dtype)
    del model
    limits = f"--kv-bytes={kv_bytes}", f"--context-length={MOST}", f"--max-sessions={SESSIONS}"
    async with (
        verifier(f"--model={embedded.target}", *limits) as (address, process),
        rpc.connect(address) as channel,
        rpc.connect("127.0.0.1:1") as nowhere,
        verifier_link(channel) as link,
        drafter_link(nowhere, link) as drafter,
    ):
        client, relays = VerifierClient(channel), Relays(link, drafter)

        async def all_of(numbers: range) -> list[list[int]]:
            return await asyncio.gather(*(complete(relays, n) for n in numbers))

        await warm_up(client)
        await all_of(range(4))
        warm = highest = process.memory_info().rss
        alone = [await complete(relays, number) for number in range(0, SESSIONS, 9)]
        crowd = asyncio.ensure_future(all_of(range(SESSIONS)))

        while not crowd.done():
            highest = max(highest, process.memory_info().rss)
            assert (await client.describe(LIMIT)).cache_usage <= 1
            await asyncio.sleep(PAUSE)
        together = await crowd

        async def closed() -> bool:
            return not (await client.describe(LIMIT)).sessions

        await until(closed, "no session is left")
    assert together[::9] == alone
    assert all(len(completion) == TOKENS for completion in together)
    assert kv_bytes / 2 < highest - warm <= 1.1 * kv_bytes + KERNELS, "the pool was used, and bound"


@pytest.mark.long("decodes six texts of 300 tokens that push each other out of memory")
async def test_sessions_that_fill_the_memory_do_not_block_each_other(
    embedded: Pair, target: PreTrainedModel
) -> None:
    """There is memory for three of six sessions; all have begun before it is full, and none is idle
    for long.
    """
    request = ask("Once upon a time there was a", tokens=MANY)
    request.stopping.ignore_eos = True
    ids = load_tokenizer(embedded.target).encode(request.text).ids
    wanted = reference.sample(target, ids, MANY, SamplingParams(), -1)
    async with (
        serve_models(
            embedded, kv_bytes="7MiB", evict_after=NEVER, session_ttl=2 * NEVER, threads=1
        ) as services,
        serve_all(services) as tandem,
    ):
        answers = await asyncio.gather(*(tandem.stub.Generate(request) for _ in range(STREAMS)))
    assert [list(answer.token_ids) for answer in answers] == [wanted] * STREAMS
