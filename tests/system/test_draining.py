"""Services that are told to stop, as real processes: they finish the running requests and take no
new ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tandem.benchmarks.peers.checkout import HERE, address, child
from tandem.protos.errors import TandemError
from tandem.protos.transport import rpc
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc
from tests.served import Pair
from tests.system.test_health import (
    NOT_SERVING,
    ORCHESTRATOR,
    SERVING,
    Watched,
    verifier_process,
    verify,
)
from tests.system.test_same_text import ask
from tests.waiting import LIMIT

pytestmark = pytest.mark.long("stops real processes, each test some of its own")


@asynccontextmanager
async def both(pair: Pair) -> AsyncIterator[dict[str, Watched]]:
    """Run a verifier, and an orchestrator that is connected to it."""
    async with AsyncExitStack() as scope:
        where, verifier = await scope.enter_async_context(verifier_process(pair.target))
        flags = "--verifier", where, "--tokenizer", str(pair.target), "--port", "0", "--no-ray"
        flags += "--lame-duck-seconds", str(LIMIT)
        process = await scope.enter_async_context(child(HERE, "orchestrator", *flags))
        channel = await scope.enter_async_context(rpc.connect(await address(process)))
        front = Watched(channel, ORCHESTRATOR, process)
        yield {"verifier": verifier, "orchestrator": front}


async def begun(front: Watched) -> Any:
    """Return a long stream that has begun."""
    request = ask("Once upon a time there was", temperature=0.7, seed=1, tokens=450)
    request.stopping.ignore_eos = True
    stub = orchestrator_pb2_grpc.OrchestratorServiceStub(front.channel)
    stream = aiter(stub.StreamGenerate(api.StreamGenerateRequest(request=request)))
    await anext(stream)
    return stream


async def test_a_draining_verifier_finishes_what_runs_takes_nothing_new_and_ends(
    embedded: Pair,
) -> None:
    async with both(embedded) as services:
        it, running = services["verifier"], await begun(services["orchestrator"])
        it.process.terminate()
        await it.becomes(NOT_SERVING)
        assert await it.status("") == SERVING
        with pytest.raises(TandemError, match="stopping"):
            await verify(it.channel)
        assert [event async for event in running][-1].HasField("complete")
        assert await it.process.wait() == 0


async def test_a_stopping_orchestrator_takes_requests_of_those_that_do_not_know_it(
    embedded: Pair,
) -> None:
    async with both(embedded) as services:
        front = services["orchestrator"]
        before = await begun(front)
        front.process.terminate()
        await front.becomes(NOT_SERVING)
        for running in (before, await begun(front)):
            assert [event async for event in running][-1].HasField("complete")
        front.process.terminate()
        assert await front.process.wait() == 0


async def test_a_second_signal_stops_at_once(embedded: Pair) -> None:
    async with both(embedded) as services:
        _ = await begun(services["orchestrator"])
        for it in services.values():  # the stream runs as long as its verifier does
            it.process.terminate()
            await it.becomes(NOT_SERVING)
            it.process.terminate()
            assert await it.process.wait() == 0
