"""The Python client with real front ends, which are killed while they answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from prometheus_client import CollectorRegistry

from tandem import AsyncClient, Client
from tandem.benchmarks.peers.checkout import HERE, address, child
from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.protos.errors import DeadlineExceeded, TransportLost
from tandem.protos.transport import rpc
from tandem.verifier_service import service as verifier_service
from tests.served import Pair, Tandem
from tests.waiting import until

PROMPT, TOKENS = "Once upon a time there was", 80
LIKE = {"temperature": 0.7, "seed": 3, "ignore_eos": True, "max_new_tokens": TOKENS}


class FrontEnds:
    """Orchestrators in their own processes, in front of the same model services."""

    def __init__(self, stack: AsyncExitStack, *flags: str) -> None:
        self._stack, self._flags = stack, flags
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, where: str = "127.0.0.1:0") -> None:
        """Start one."""
        flags = *self._flags, "--port", where.rpartition(":")[2], "--no-ray"
        process = await self._stack.enter_async_context(child(HERE, "orchestrator", *flags))
        self.processes[await address(process)] = process

    async def replace(self, where: str) -> None:
        """Kill a front end with SIGKILL, and start another one at its address."""
        self.processes[where].kill()
        await self.processes[where].wait()
        await self.start(where)


@pytest.fixture(scope="module")
async def two(embedded: Pair) -> AsyncIterator[FrontEnds]:
    """Run two front ends and model services; the services keep the sessions of a front end that is
    killed.
    """
    flags = ["--tokenizer", str(embedded.target)]
    async with AsyncExitStack() as stack:
        for role, module, model in (
            ("verifier", verifier_service, embedded.target),
            ("drafter", drafter_service, embedded.draft),
        ):
            config = ModelServiceConfig(model=model, threads=1)
            serving = module.serving(config, CollectorRegistry())
            flags += [f"--{role}", await stack.enter_async_context(serving)]
        started = FrontEnds(stack, *flags)
        await asyncio.gather(started.start(), started.start())
        yield started


@pytest.mark.long("starts front ends as processes and kills each")
@pytest.mark.parametrize("rule", ["match", "reject"])
async def test_a_stream_survives_every_front_end_in_turn(two: FrontEnds, rule: str) -> None:
    """One of the rules makes the text depend on its drafts."""
    places, text, tokens, killed = list(two.processes), "", [], 0
    async with AsyncClient(*places) as client:
        async with client.stream(PROMPT, rule=rule, **LIKE) as stream:
            async for chunk in stream:
                text += chunk.text
                tokens += chunk.token_ids
                assert chunk.completion_tokens == len(tokens)
                if len(tokens) > 20 * (killed + 1) and killed < 2:
                    await two.replace(places[killed])
                    killed += 1
        assert killed == 2 and len(tokens) == TOKENS
        assert stream.response is not None
        assert (text, tokens) == (stream.response.text, list(stream.response.token_ids))
        if rule == "match":
            calm = await client.generate(PROMPT, **LIKE)
            assert (text, tokens) == (calm.text, list(calm.token_ids))


@pytest.mark.long("starts front ends as processes and kills one")
async def test_the_only_front_end_may_come_back(two: FrontEnds) -> None:
    place, *_ = two.processes
    async with AsyncClient(place) as client:
        calm = await client.generate(PROMPT, **LIKE)
        answer = asyncio.create_task(client.generate(PROMPT, **LIKE))
        await until(lambda: running(client), "the request is running")
        await two.replace(place)
        assert (await answer).text == calm.text


async def running(client: AsyncClient) -> int:
    (model,) = (await client.status()).models
    return model.requests_running


async def test_the_deadline_is_for_the_whole_answer(tandem: Tandem, nothing_left: None) -> None:
    async with AsyncClient(tandem.address) as client:
        with pytest.raises(DeadlineExceeded):
            await client.generate(PROMPT, deadline_seconds=0.05, **LIKE)


async def test_it_gives_up_where_nobody_answers() -> None:
    nowhere = f"127.0.0.1:{rpc.free_port('127.0.0.1')}"
    async with AsyncClient(nowhere, retry_seconds=0.2) as client:
        with pytest.raises(TransportLost):
            await client.generate(PROMPT)
        with pytest.raises(TransportLost):
            await client.status()


async def test_a_stream_that_is_left_is_not_generated_any_more(
    tandem: Tandem, nothing_left: None
) -> None:
    async with AsyncClient(tandem.address) as client:
        async with client.stream(PROMPT, **LIKE) as stream:
            async for _ in stream:
                break

        async def idle() -> bool:
            return not await running(client)

        await until(idle, "no request is running")


async def test_without_asyncio(tandem: Tandem, nothing_left: None) -> None:
    like = LIKE | {"max_new_tokens": 12}

    def program() -> None:
        with Client(tandem.address) as client:
            assert client.status().models[0].verifiers[0].serving
            whole = client.generate(PROMPT, **like)
            with client.stream(PROMPT, **like) as stream:
                assert "".join(chunk.text for chunk in stream) == whole.text
            assert stream.response is not None
            with client.stream(PROMPT, **like) as stream:
                next(iter(stream))
        client.close()

    await asyncio.to_thread(program)
