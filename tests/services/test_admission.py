"""Clients share the front end: none can keep the others out, neither by many requests nor by not
reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio
from prometheus_client import CollectorRegistry

from tandem import AsyncClient
from tandem.benchmarks.overload import SMALL_WINDOW
from tandem.orchestrator.frontend import servicer
from tandem.orchestrator.frontend.admission import Admission, Limits
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.frontend.servicer import OrchestratorService
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.requests.request import Quota, client_name
from tandem.protos.errors import Busy
from tandem.protos.service.drain import Drain
from tandem.protos.transport import rpc
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc
from tests.services.test_answers import Front, front
from tests.waiting import until

CROWD, OTHER = b"crowd", b"other"


def admission(running: int, waiting: int, each: Limits) -> Admission:
    return Admission(Limits(running, waiting), each, FrontMetrics(CollectorRegistry()))


async def test_a_client_at_its_limit_is_refused_and_others_are_not() -> None:
    bounded = admission(4, 8, Limits(2, 1, "_per_client"))
    problem = (
        "3 requests of this client run or wait:"
        " max_running_per_client is 2, max_waiting_per_client is 1"
    )
    with bounded.admitted(CROWD), bounded.admitted(CROWD), bounded.admitted(CROWD):
        with pytest.raises(Busy) as refused, bounded.admitted(CROWD):
            pass
        assert str(refused.value) == problem
        assert refused.value.retry_after > 0
        with bounded.admitted(OTHER):
            assert bounded.waiting == 4
    with bounded.admitted(CROWD):
        assert bounded.waiting == 1, "nothing is left of what had ended or was refused"


async def test_waiting_requests_that_are_cancelled_leave_at_once() -> None:
    bounded = admission(1, 8, Limits(1, 8))

    async def run(share: bytes, running: asyncio.Event, done: asyncio.Event) -> None:
        with bounded.admitted(share):
            async with bounded.place(share, 100):
                running.set()
                await done.wait()

    first, second, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(run(CROWD, first, done))
        await first.wait()
        waiting = group.create_task(run(CROWD, asyncio.Event(), done))
        group.create_task(run(OTHER, second, done))
        await asyncio.sleep(0)
        assert (bounded.running, bounded.waiting) == (1, 2)
        waiting.cancel()
        await asyncio.sleep(0)
        assert (bounded.running, bounded.waiting) == (1, 1)
        done.set()
    assert second.is_set()
    assert (bounded.running, bounded.waiting) == (0, 0)


async def test_a_request_that_is_cancelled_as_its_turn_comes_loses_no_place() -> None:
    bounded = admission(1, 8, Limits(1, 8))

    async def run() -> None:
        with bounded.admitted(CROWD):
            async with bounded.place(CROWD, 100):
                await asyncio.sleep(0)

    running, waiting = asyncio.create_task(run()), asyncio.create_task(run())
    await asyncio.sleep(0)
    # the request's place goes to the other request, which is cancelled before it wakes up
    running.cancel()
    running.add_done_callback(lambda _: waiting.cancel())
    await asyncio.gather(running, waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert (bounded.running, bounded.waiting) == (0, 0)
    await run()


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Front, str]]:
    """Serve a front end on a port; yields it and its address."""
    nobody: Any = None  # the status is never asked for
    async with front() as behind:
        service = OrchestratorService(behind.answers, nobody, Drain(), RequestLog())
        async with rpc.serving("127.0.0.1", 0, service) as address:
            yield behind, address


async def left(behind: Front) -> None:
    """Return whether no request runs or waits any more."""
    admitted = behind.answers.admission
    await until(lambda: not admitted.running + admitted.waiting)


async def test_a_client_that_reads_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servicer, "MUTE_SECONDS", 0.2)
    async with (
        served() as (behind, address),
        aio.insecure_channel(address, options=SMALL_WINDOW) as channel,
    ):
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        request = api.StreamGenerateRequest(request=api.GenerateRequest(text="Once"))
        mute = aiter(stub.StreamGenerate(request))
        await anext(mute)
        await left(behind)
        with pytest.raises(aio.AioRpcError, match="the client read nothing for") as ended:
            _ = [event async for event in mute]
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_client_that_leaves_while_it_is_written_to_is_no_bug() -> None:
    class Gone:
        async def write(self, response: api.StreamGenerateResponse) -> None:
            raise aio.InternalError("the batch failed")

    gone: Any = Gone()
    with pytest.raises(asyncio.CancelledError):
        await servicer._send(gone, api.StreamGenerateResponse())


async def test_the_python_client_goes_on_with_a_stream_that_it_did_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servicer, "MUTE_SECONDS", 0.2)
    monkeypatch.setattr(rpc, "CLIENT_OPTIONS", [*rpc.CLIENT_OPTIONS, *SMALL_WINDOW])
    async with served() as (behind, address), AsyncClient(address) as client:
        whole = await client.generate("Once")
        stream = client.stream("Once")
        chunks = aiter(stream)
        tokens = list((await anext(chunks)).token_ids)
        await left(behind)
        async for chunk in chunks:
            tokens += chunk.token_ids
        assert tokens == list(whole.token_ids)
        assert stream.response is not None
        assert stream.response.text == whole.text
        assert behind.writer.asked[-1], "the last run began where the client was"


async def test_a_quota_wins_over_what_all_clients_may() -> None:
    bounded = admission(4, 8, Limits(4, 4, "_per_client"))
    quota = Quota("alice", running=1, waiting=1)
    with bounded.admitted(CROWD, quota), bounded.admitted(CROWD, quota):
        problem = "max_running_per_client is 1, max_waiting_per_client is 1"
        with pytest.raises(Busy, match=problem), bounded.admitted(CROWD, quota):
            pass
        with bounded.admitted(OTHER), bounded.admitted(OTHER), bounded.admitted(OTHER):
            found = [(each.name, each.waiting) for each in bounded.clients]
            assert (client_name(CROWD), 2) in found
            assert "alice" not in dict(found), "other clients see them"


async def test_clients_get_tokens_by_their_weights() -> None:
    bounded = admission(1, 100, Limits(1, 100))
    order: list[bytes] = []

    async def run(share: bytes, weight: float) -> None:
        quota = Quota(share.decode(), weight=weight)
        with bounded.admitted(share, quota):
            async with bounded.place(share, 100, quota) as place:
                place.used = 100
                order.append(share)
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for _ in range(30):
            group.create_task(run(CROWD, 1.0))
            group.create_task(run(OTHER, 3.0))
    assert 20 <= order[:28].count(OTHER) <= 22
