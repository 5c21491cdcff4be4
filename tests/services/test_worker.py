"""The round worker: one request from its opening to the end of its session."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tandem.orchestrator.fleet.registration import Access
from tandem.orchestrator.workers.cluster import RoundWorker
from tandem.orchestrator.workers.worker import RoundWorkerService, drafter_link
from tandem.protos.errors import StaleTurn
from tandem.protos.transport import rpc, status
from tandem.protos.types import ModelDescription
from tandem.v1 import common_pb2, rounds_pb2, verifier_pb2
from tests.services.peer import SESSION, Peer, linked
from tests.waiting import until


def counting(request: verifier_pb2.DecodeRequest) -> verifier_pb2.DecodeResponse:
    """A verifier that counts up, two tokens a step."""
    said = [
        common_pb2.Fact(
            stream=each.stream,
            start=start,
            tokens=[start, start + 1],
            drafted=3,
            accepted=1,
            logprobs=[common_pb2.Logprobs(logprob=-1)] * 2,
        )
        for each in request.open
        for start in range(len(each.context.tokens), each.until, 2)
    ]
    return verifier_pb2.DecodeResponse(facts=said)


def request() -> rounds_pb2.RunRequest:
    return rounds_pb2.RunRequest(
        request_id="id", prompt=[5], max_new_tokens=5, session_id=SESSION, first_turn=7
    )


@asynccontextmanager
async def working(verifier: Peer) -> AsyncIterator[RoundWorkerService]:
    """A round worker without a drafter."""
    async with (
        rpc.connect("127.0.0.1:1") as nowhere,
        linked(verifier) as (decoding, _),
        drafter_link(nowhere, decoding) as guessing,
    ):
        yield RoundWorkerService(decoding, guessing)


async def test_a_worker_streams_steps_cut_at_the_limit_and_closes_the_session() -> None:
    verifier, context = Peer(counting), Any
    async with working(verifier) as worker:
        steps = [step async for step in worker.Run(request(), context)]
        await until(lambda: verifier.sent("closings"))
    (opened,) = verifier.sent("open")
    assert (opened.context.turn, opened.until, opened.request_id) == (8, 6, "id")
    assert [list(step.tokens) for step in steps] == [[1, 2], [3, 4], [5]]
    assert [step.finish for step in steps] == [0, 0, rounds_pb2.FINISH_LENGTH]
    assert [(step.drafted, step.accepted) for step in steps] == [(3, 1)] * 3
    assert [len(step.logprobs) for step in steps] == [2, 2, 1]
    assert all(step.seconds >= 0 and step.verifier_round_trip > 0 for step in steps)


async def test_a_request_that_is_not_read_to_its_end_closes_its_session() -> None:
    verifier, context = Peer(counting), Any
    async with working(verifier) as worker:
        steps = worker.Run(request(), context)
        await anext(steps)
        await steps.aclose()  # type: ignore[attr-defined]
        await until(lambda: [each.session_id for each in verifier.sent("closings")] == [SESSION])


async def test_what_a_verifier_refuses_is_the_requests_error() -> None:
    def refuse(request: verifier_pb2.DecodeRequest) -> verifier_pb2.DecodeResponse:
        packed = status.pack(StaleTurn("taken over"))
        failures = [common_pb2.Failure(stream=each.stream, status=packed) for each in request.open]
        return verifier_pb2.DecodeResponse(failures=failures)

    async with working(Peer(refuse)) as worker:
        context: Any = None
        with pytest.raises(StaleTurn, match="taken over"):
            await anext(aiter(worker.Run(request(), context)))


FAILING = """
import asyncio
from tandem.orchestrator.fleet.registration import Access
from tandem.orchestrator.workers import worker
from tandem.orchestrator.workers.cluster import RoundWorker
from tandem.protos.types import ModelDescription
answered = False
def fail(*_):
    if answered:
        raise RuntimeError("a bug")
worker.BalancedLink.leave_slow = fail
worker.heartbeat.SECONDS = 0.1
async def main():
    global answered
    target = ModelDescription("it", "", 100, 100, (), "cpu", "float32")
    print(await RoundWorker(Access("key"), target, log_level="info").endpoint(), flush=True)
    answered = True
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_a_round_worker_on_ray_whose_work_fails_ends_its_process() -> None:
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True)
    assert done.returncode == 1 and ":" in done.stdout
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["event"] == "a round worker failed"


async def test_a_round_worker_on_ray_has_one_address_however_often_it_is_asked() -> None:
    """A front end that is impatient asks again while the first answer is on its way."""
    actor = RoundWorker(Access("key"), ModelDescription("it", "", 100, 100, (), "cpu", "float32"))
    try:
        assert len(set(await asyncio.gather(*(actor.endpoint() for _ in range(5))))) == 1
    finally:
        await actor.drain()
