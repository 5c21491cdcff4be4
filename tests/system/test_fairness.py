"""A client with hundreds of streams and one with three requests, on a real orchestrator."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc import aio

from tandem.protos.errors import Busy
from tandem.protos.transport import status
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc
from tests.served import Services, serve_all
from tests.system.test_same_text import ask

RUNNING, WAITING, CROWD = 4, 32, 60
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


def request() -> api.GenerateRequest:
    asked = ask("Once upon a time there was", temperature=0.7, seed=1, tokens=12)
    asked.stopping.ignore_eos = True
    return asked


async def outcome(stub: Any) -> api.GenerateResponse | Busy:
    """Return the answer to a stream, or why it was refused; fail if anything else happens."""
    stream = stub.StreamGenerate(api.StreamGenerateRequest(request=request()))
    try:
        complete: api.GenerateResponse = [event async for event in stream][-1].complete
        return complete
    except aio.AioRpcError as failure:
        error = status.decode(failure)
        assert isinstance(error, Busy), error
        return error


async def test_a_crowd_on_one_connection_keeps_nobody_else_out(
    services: Services, nothing_left: None
) -> None:
    bounds = {"max_running": RUNNING, "max_waiting": WAITING}
    async with (
        serve_all(services, **bounds) as tandem,
        aio.insecure_channel(tandem.address, options=OWN_CONNECTION) as connection,
    ):
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(connection)
        crowd = [asyncio.create_task(outcome(stub)) for _ in range(CROWD)]
        for first in asyncio.as_completed(crowd):
            if not isinstance(await first, Busy):
                break  # one request has had its turn, and others wait for theirs
        others = await asyncio.gather(*(tandem.stub.Generate(request()) for _ in range(3)))
        waited = sum(not stream.done() for stream in crowd)
        ended = await asyncio.gather(*crowd)
    assert waited, "others do not wait for all who came before"
    answers = [answer for answer in ended if not isinstance(answer, Busy)]
    refusals = [str(refusal) for refusal in ended if isinstance(refusal, Busy)]
    assert len(answers) >= RUNNING + WAITING // 2
    assert len({tuple(answer.token_ids) for answer in (*answers, *others)}) == 1
    assert refusals
    assert all("max_waiting_per_client is 16" in refusal for refusal in refusals)
