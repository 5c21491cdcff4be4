"""The Python client on real front ends, which are killed while they answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tandem import AsyncClient, Client
from tandem.benchmarks.peers.checkout import HERE, Checkout, address, child, serving
from tandem.protos.errors import DeadlineExceeded, TransportLost
from tandem.protos.transport import rpc
from tests.conftest import Pair

PROMPT, TOKENS = "Once upon a time there was", 120
LIKE = {"temperature": 0.7, "seed": 3, "ignore_eos": True, "max_new_tokens": TOKENS}


class FrontEnds:
    """Orchestrators in processes of their own, before the same model services."""

    def __init__(self, services: Checkout, stack: AsyncExitStack) -> None:
        self._services, self._stack = services, stack
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, where: str = "127.0.0.1:0") -> str:
        """Start one; its address."""
        services = self._services
        flags = f"--verifier {services.verifier} --drafter {services.drafter} --no-ray".split()
        flags += ["--port", where.rpartition(":")[2], "--tokenizer", str(services.target)]
        flags += ["--log-level", "error"]
        process = await self._stack.enter_async_context(child(HERE, "orchestrator", *flags))
        started = await address(process)
        self.processes[started] = process
        return started

    async def kill(self, where: str) -> None:
        """At once, without a word."""
        self.processes[where].kill()
        await self.processes[where].wait()


@asynccontextmanager
async def front_ends(services: Checkout, count: int) -> AsyncIterator[FrontEnds]:
    async with AsyncExitStack() as stack:
        started = FrontEnds(services, stack)
        await asyncio.gather(*(started.start() for _ in range(count)))
        yield started


@pytest.fixture(scope="module")
async def services(embedded: Pair) -> AsyncIterator[Checkout]:
    """Sessions of a front end that was killed stay here until they are evicted."""
    async with serving(HERE, embedded.target, embedded.draft) as served:
        yield served


@pytest.fixture(scope="module")
async def two(services: Checkout) -> AsyncIterator[FrontEnds]:
    async with front_ends(services, 2) as started:
        yield started


async def test_a_stream_survives_every_front_end_in_turn(two: FrontEnds) -> None:
    places = list(two.processes)
    async with AsyncClient(*places) as client:
        calm = await client.generate(PROMPT, **LIKE)
        assert len(calm.token_ids) == TOKENS
        text, tokens, killed = "", [], 0
        async with client.stream(PROMPT, **LIKE) as stream:
            async for chunk in stream:
                text += chunk.text
                tokens += chunk.token_ids
                assert chunk.completion_tokens == len(tokens)
                if len(tokens) > 30 * (killed + 1) and killed < 3:
                    where = places[killed % 2]
                    await two.kill(where)
                    await two.start(where)
                    killed += 1
    assert killed == 3
    assert (text, tokens) == (calm.text, list(calm.token_ids))
    assert stream.response is not None
    assert stream.response.text == calm.text


async def test_the_only_front_end_may_come_back(services: Checkout) -> None:
    async with front_ends(services, 1) as one:
        (place,) = one.processes
        async with AsyncClient(place) as client:
            calm = await client.generate(PROMPT, **LIKE)
            answer = asyncio.create_task(client.generate(PROMPT, **LIKE))
            await asyncio.sleep(0.3)
            await one.kill(place)
            await one.start(place)
            assert (await answer).text == calm.text


@pytest.mark.parametrize("rule", ["reject", "top1"])
async def test_a_text_that_depends_on_its_drafts_is_continued(two: FrontEnds, rule: str) -> None:
    places, tokens, text, killed = list(two.processes), [], "", False
    async with (
        AsyncClient(*places) as client,
        client.stream(PROMPT, rule=rule, **LIKE) as stream,
    ):
        async for chunk in stream:
            text += chunk.text
            tokens += chunk.token_ids
            assert chunk.completion_tokens == len(tokens)
            if len(tokens) > 10 and not killed:
                killed = True
                for where in places:
                    await two.kill(where)
                    await two.start(where)
    assert killed
    assert stream.response is not None
    assert (text, tokens) == (stream.response.text, list(stream.response.token_ids))
    assert len(tokens) == TOKENS


async def test_the_deadline_is_for_the_whole_answer(two: FrontEnds) -> None:
    async with AsyncClient(*two.processes) as client:
        with pytest.raises(DeadlineExceeded):
            await client.generate(PROMPT, deadline_seconds=0.05, **LIKE)


async def test_it_gives_up_where_nobody_answers() -> None:
    nowhere = f"127.0.0.1:{rpc.free_port('127.0.0.1')}"
    async with AsyncClient(nowhere, retry_seconds=0.2) as client:
        with pytest.raises(TransportLost):
            await client.generate(PROMPT)
        with pytest.raises(TransportLost):
            await client.status()


async def test_a_stream_that_is_left_is_not_generated_any_more(two: FrontEnds) -> None:
    async with AsyncClient(*two.processes) as client:
        async with client.stream(PROMPT, **LIKE) as stream:
            async for _ in stream:
                break
        for _ in range(50):
            (model,) = (await client.status()).models
            if not model.requests_running:
                break
            await asyncio.sleep(0.1)
        assert model.requests_running == 0


async def test_without_asyncio(two: FrontEnds) -> None:
    def program() -> None:
        with Client(*two.processes) as client:
            assert client.status().models[0].verifiers[0].serving
            whole = client.generate(PROMPT, **LIKE)
            with client.stream(PROMPT, **LIKE) as stream:
                assert "".join(chunk.text for chunk in stream) == whole.text
            assert stream.response is not None
            with client.stream(PROMPT, **LIKE) as stream:
                next(iter(stream))
        client.close()

    await asyncio.to_thread(program)
