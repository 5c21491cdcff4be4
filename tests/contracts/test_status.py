"""An error raised on one side of a call arrives as the same error on the other, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from grpc import aio
from hypothesis import given
from hypothesis import strategies as st

from tandem.protos import errors
from tandem.protos.errors import (
    Busy,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    TandemError,
    TransportLost,
    Violation,
    is_transient,
)
from tandem.protos.transport import rpc, status
from tandem.v1 import (
    common_pb2,
    orchestrator_pb2,
    orchestrator_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)
from tests.waiting import LIMIT

VERIFIER = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name
CLIENT_API = orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"].full_name
SECRET = "once upon a secret time"
Context = aio.ServicerContext[Any, Any]

SENT: list[TandemError] = [
    InvalidRequest(Violation("a.b", "is 3, above 2"), Violation("c", "is empty: 世界")),
    errors.SessionMiss("base 7 is not cached here"),
    errors.StaleTurn("turn 1 is stale: the session is at turn 2"),
    Busy("all 4 sessions are in use", retry_after=1.25),
    errors.IncompatibleModels("fingerprints differ"),
    errors.Unavailable("no verifier serves"),
    DeadlineExceeded("the caller's time ran out"),
    errors.Unauthenticated("a client certificate is needed here"),
    errors.PermissionDenied("a caller with the certificate 'drafter' may not call this service"),
    Internal("the forward pass failed; see the server's log"),
]


class Refusing(
    verifier_pb2_grpc.VerifierServiceServicer, orchestrator_pb2_grpc.OrchestratorServiceServicer
):
    """A service that always raises the same error, or that never answers if it has none."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.asked = asyncio.Event()

    async def DescribeVerifier(
        self, request: verifier_pb2.DescribeVerifierRequest, context: Context
    ) -> verifier_pb2.DescribeVerifierResponse:
        self.asked.set()
        if self._error:
            raise self._error
        await asyncio.Event().wait()
        return verifier_pb2.DescribeVerifierResponse()

    async def Decode(
        self, requests: AsyncIterator[verifier_pb2.DecodeRequest], context: Context
    ) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        async for request in requests:
            yield verifier_pb2.DecodeResponse(sent=request.sent)
        if self._error:
            raise self._error

    async def StreamGenerate(
        self, request: orchestrator_pb2.StreamGenerateRequest, context: Context
    ) -> AsyncIterator[orchestrator_pb2.StreamGenerateResponse]:
        yield reply([1, 2])
        if self._error:
            raise self._error


def reply(tokens: Iterable[int]) -> orchestrator_pb2.StreamGenerateResponse:
    """Return a message of a stream, with these tokens."""
    return orchestrator_pb2.StreamGenerateResponse(chunk=orchestrator_pb2.Chunk(token_ids=tokens))


@asynccontextmanager
async def refusing(error: Exception | None) -> AsyncIterator[aio.Channel]:
    """Connect to a server that refuses every call."""
    async with (
        rpc.serving("127.0.0.1", 0, Refusing(error)) as address,
        rpc.connect(address) as channel,
    ):
        yield channel


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[aio.Server, Refusing, aio.Channel]]:
    """Connect to a server that never answers and can be stopped at once."""
    server, servicer = aio.server(), Refusing(None)
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with rpc.connect(f"127.0.0.1:{port}") as channel:
        yield server, servicer, channel
    await server.stop(0)


async def failure_of(channel: aio.Channel, seconds: float = LIMIT) -> aio.AioRpcError:
    """Return the error with which a call fails."""
    with pytest.raises(aio.AioRpcError) as failure:
        await verifier_pb2_grpc.VerifierServiceStub(channel).DescribeVerifier(
            verifier_pb2.DescribeVerifierRequest(), timeout=seconds
        )
    return failure.value


def same(arrived: TandemError, error: TandemError) -> bool:
    """Return whether an error arrived in full."""
    return (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


def test_the_table_is_tested_as_a_whole() -> None:
    assert {type(error) for error in SENT} == set(errors.BY_REASON.values())


@pytest.mark.parametrize("error", SENT, ids=lambda error: error.reason)
async def test_an_error_arrives_as_it_was_raised(error: TandemError) -> None:
    async with refusing(error) as channel:
        failure = await failure_of(channel)
    assert failure.code() is grpc.StatusCode[error.status]
    assert same(status.decode(failure), error)


async def test_an_error_amid_a_stream_arrives_after_what_was_streamed() -> None:
    received: list[int] = []
    async with refusing(SENT[0]) as channel:
        with pytest.raises(aio.AioRpcError) as failure:
            async for step in orchestrator_pb2_grpc.OrchestratorServiceStub(channel).StreamGenerate(
                orchestrator_pb2.StreamGenerateRequest(), timeout=LIMIT
            ):
                received += step.chunk.token_ids
    assert received == [1, 2]
    assert same(status.decode(failure.value), SENT[0])


async def test_an_error_that_ends_two_streams_arrives_as_it_was_raised() -> None:
    requests = [verifier_pb2.DecodeRequest(sent=clock) for clock in (1.0, 2.0)]
    received: list[float] = []
    async with refusing(SENT[0]) as channel:
        with pytest.raises(aio.AioRpcError) as failure:
            async for response in verifier_pb2_grpc.VerifierServiceStub(channel).Decode(
                iter(requests), timeout=LIMIT
            ):
                received.append(response.sent)
    assert received == [1.0, 2.0]
    assert same(status.decode(failure.value), SENT[0])


@pytest.mark.parametrize("error", SENT, ids=lambda error: error.reason)
def test_an_error_of_one_session_is_told_in_a_message_as_it_was_raised(error: TandemError) -> None:
    """The other sessions of the same call go on."""
    failure = common_pb2.Failure(stream=3, status=status.pack(error))
    arrived = common_pb2.Failure.FromString(failure.SerializeToString())
    assert arrived.stream == 3
    assert same(status.unpack(arrived.status), error)


@given(st.binary(max_size=60))
def test_whatever_a_peer_packs_stands_for_an_error(packed: bytes) -> None:
    assert isinstance(status.unpack(packed), TandemError)


def test_an_error_of_another_system_is_a_failure_of_the_peer() -> None:
    foreign = status_pb2.Status(code=5, message="not here")
    assert same(status.unpack(foreign.SerializeToString()), Internal("not here"))
    assert same(status.unpack(b""), Internal("an unknown failure"))


@pytest.mark.parametrize("size", [1000, 5000, 20_000])
async def test_an_error_arrives_as_its_kind_however_long_its_text(size: int) -> None:
    """A client may put anything into a bad value; a header can hold only a part of it."""
    async with refusing(
        InvalidRequest.of("model", f"is {'x' * size!r}; served is 'tiny'")
    ) as channel:
        arrived = status.decode(await failure_of(channel))
    assert isinstance(arrived, InvalidRequest)
    assert [violation.field for violation in arrived.violations] == ["model"]


async def test_a_bug_arrives_as_internal_without_its_text() -> None:
    async with refusing(RuntimeError(SECRET)) as channel:
        failure = await failure_of(channel)
    assert failure.code() is grpc.StatusCode.INTERNAL
    assert type(status.decode(failure)) is Internal
    assert SECRET not in f"{failure} {failure.trailing_metadata()}"


async def test_a_peer_that_is_not_there_is_lost() -> None:
    async with rpc.serving("127.0.0.1", 0, object()) as address:
        pass
    async with rpc.connect(address) as channel:
        assert type(status.decode(await failure_of(channel))) is TransportLost


async def test_a_peer_that_goes_away_amid_a_call_is_lost() -> None:
    async with hanging() as (server, servicer, channel):
        call = asyncio.create_task(failure_of(channel))
        await servicer.asked.wait()
        await server.stop(0)
        assert type(status.decode(await call)) is TransportLost


async def test_time_that_ran_out_is_a_deadline() -> None:
    async with hanging() as (_, _, channel):
        failure = await failure_of(channel, seconds=0.1)
    assert type(status.decode(failure)) is DeadlineExceeded


def test_only_what_may_pass_by_itself_is_transient() -> None:
    names = {
        type(error).__name__ for error in (*SENT, TransportLost("gone")) if is_transient(error)
    }
    assert names == {"Busy", "Unavailable", "TransportLost", "DeadlineExceeded"}


@pytest.mark.parametrize(
    "method", [f"/{VERIFIER}/DescribeVerifier", f"/{CLIENT_API}/StreamGenerate"]
)
async def test_bytes_that_are_no_message_are_an_invalid_request(method: str) -> None:
    async with refusing(Internal("never reached")) as channel:
        with pytest.raises(aio.AioRpcError) as failure:
            if method.endswith("StreamGenerate"):
                await channel.unary_stream(method)(b"\xff\xff").read()
            else:
                await channel.unary_unary(method)(b"\xff\xff")
    arrived = status.decode(failure.value)
    assert isinstance(arrived, InvalidRequest)
    assert [violation.field for violation in arrived.violations] == ["request"]
