"""Relays over real gRPC, from the opening of a request to the end of its session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from tandem.orchestrator.links.relays import Relays, drafter_link, verifier_link
from tandem.orchestrator.rounds.generation import Finish, RunRequest
from tandem.protos.errors import StaleTurn
from tandem.protos.transport import rpc, status
from tandem.protos.types import SamplingParams
from tandem.v1 import common_pb2, verifier_pb2
from tests.served import Services
from tests.services.peer import SESSION, Peer, linked
from tests.waiting import until

REQUEST = RunRequest("id", SESSION, (5,), SamplingParams(logprobs=0), 5)


def counting(request: verifier_pb2.DecodeRequest) -> verifier_pb2.DecodeResponse:
    """A verifier that counts up, two tokens a step."""
    said = [
        common_pb2.Commit(
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
    return verifier_pb2.DecodeResponse(commits=said)


@asynccontextmanager
async def relayed(verifier: Peer) -> AsyncIterator[Relays]:
    """Run relays without a drafter."""
    async with (
        rpc.connect("127.0.0.1:1") as nowhere,
        linked(verifier) as (decoding, _),
        drafter_link(nowhere, decoding) as proposing,
    ):
        yield Relays(decoding, proposing)


async def test_a_request_is_steps_cut_at_the_limit_and_its_session_is_closed() -> None:
    verifier = Peer(counting)
    async with relayed(verifier) as relays:
        steps = [step async for step in relays.run(REQUEST)]
        await until(lambda: verifier.sent("closings"))
    (opened,) = verifier.sent("open")
    assert (opened.context.turn, opened.until, opened.request_id) == (1, 6, "id")
    assert [step.tokens for step in steps] == [(1, 2), (3, 4), (5,)]
    assert [step.finish for step in steps] == [None, None, Finish.LENGTH]
    assert [(step.commit.drafted, step.commit.accepted) for step in steps] == [(3, 1)] * 3
    assert [len(step.commit.logprobs) for step in steps] == [2, 2, 1]
    assert all(step.seconds >= 0 and step.verifier_round_trip > 0 for step in steps)


async def test_a_request_that_is_not_read_to_its_end_closes_its_session() -> None:
    verifier = Peer(counting)
    async with relayed(verifier) as relays:
        async with aclosing(relays.run(REQUEST)) as steps:
            await anext(steps)
        await until(lambda: [each.session_id for each in verifier.sent("closings")] == [SESSION])


async def test_what_a_verifier_refuses_is_the_requests_error() -> None:
    def refuse(request: verifier_pb2.DecodeRequest) -> verifier_pb2.DecodeResponse:
        packed = status.pack(StaleTurn("taken over"))
        failures = [common_pb2.Failure(stream=each.stream, status=packed) for each in request.open]
        return verifier_pb2.DecodeResponse(failures=failures)

    async with relayed(Peer(refuse)) as relays:
        with pytest.raises(StaleTurn, match="taken over"):
            await anext(relays.run(REQUEST))


async def test_every_orchestrator_knows_how_many_streams_a_service_has_of_others(
    services: Services, nothing_left: None
) -> None:
    async with AsyncExitStack() as scope:
        channels = [
            await scope.enter_async_context(rpc.connect(services.verifier)) for _ in range(2)
        ]
        ours, theirs = [
            await scope.enter_async_context(verifier_link(channel, "")) for channel in channels
        ]
        await until(lambda: ours.connected and theirs.connected)
        nowhere = await scope.enter_async_context(rpc.connect("127.0.0.1:1"))
        relays = Relays(ours, drafter_link(nowhere, ours))
        request = replace(REQUEST, max_new_tokens=400)
        async with aclosing(relays.run(request)) as steps:
            await anext(steps)
            await until(lambda: theirs.others == 1)
            assert ours.others == 0
        await until(lambda: theirs.others == 0)
