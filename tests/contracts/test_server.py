"""What every port offers: health, reflection, and a clear error when the port is taken."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from tandem.benchmarks.peers.delay import State, linked
from tandem.protos import errors
from tandem.protos.service.pages import Pages, pages_served
from tandem.protos.transport import health as own_health
from tandem.protos.transport import interceptor, rpc, status
from tandem.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from tests.contracts.test_status import CLIENT_API, VERIFIER, refusing, reply
from tests.waiting import LIMIT, until

CALLS = 2000  # at once


async def serves(channel: aio.Channel, name: str = "") -> bool:
    """Return whether a service, or the process, reports that it serves."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=LIMIT)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def run(channel: aio.Channel) -> Any:
    """Call a method of Tandem's."""
    return orchestrator_pb2_grpc.OrchestratorServiceStub(channel).StreamGenerate(
        orchestrator_pb2.StreamGenerateRequest(), timeout=LIMIT
    )


async def test_health_knows_the_process_and_each_service() -> None:
    async with refusing(None) as channel:
        for name in ("", VERIFIER, CLIENT_API):
            assert await serves(channel, name)
        with pytest.raises(aio.AioRpcError) as failure:
            await serves(channel, "nobody")
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_whoever_watches_health_is_told_when_a_server_drains() -> None:
    """`Watch` is what clients' load balancing uses; it streams without being an async generator."""
    served: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()

    async def serve() -> None:
        async with rpc.serving("127.0.0.1", 0, object()) as address:
            served.set_result(address)
            await stop.wait()

    server = asyncio.create_task(serve())
    async with rpc.connect(await served) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=LIMIT)
        try:
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            stop.set()
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        finally:
            watch.cancel()
            stop.set()
            await server


async def test_watches_of_health_have_a_limit_and_checks_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_health, "MAX_WATCHES", 2)
    asked, serving = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse.SERVING
    async with rpc.serving("127.0.0.1", 0, object()) as address, rpc.connect(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(asked, timeout=LIMIT) for _ in range(2)]
        for watch in watches:
            assert (await watch.read()).status == serving
        with pytest.raises(
            aio.AioRpcError, match="2 Watch calls run on this connection"
        ) as failure:
            await stub.Watch(asked, timeout=LIMIT).read()
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await serves(channel)
        own_connection = [("grpc.use_local_subchannel_pool", 1)]
        async with aio.insecure_channel(address, options=own_connection) as another:
            own: Any = health_pb2_grpc.HealthStub(another)
            assert (await own.Watch(asked, timeout=LIMIT).read()).status == serving
        watches[0].cancel()

        async def watched() -> bool:
            """Watch health, once the previous watcher has left."""
            with suppress(aio.AioRpcError):
                return (await stub.Watch(asked, timeout=LIMIT).read()).status == serving
            return False

        await until(watched)


async def test_a_service_far_away_is_connected_to_at_once() -> None:
    """A connection takes longer than the pause between two attempts to make one."""
    async with rpc.serving("127.0.0.1", 0, object()) as address, linked(address) as link:
        await link.become(State(round_trip=0.5))
        async with rpc.connect(f"127.0.0.1:{link.port}") as channel:
            assert await serves(channel)


class Hanging(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """A service that answers when the test allows it."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def StreamGenerate(
        self, request: object, context: object
    ) -> AsyncIterator[orchestrator_pb2.StreamGenerateResponse]:
        await self.go.wait()
        yield reply([1])


async def test_a_server_full_of_calls_refuses_more_and_still_answers_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interceptor, "MAX_CONCURRENT_CALLS", 2)
    servicer = Hanging()
    async with rpc.serving("127.0.0.1", 0, servicer) as address, rpc.connect(address) as channel:
        calls = [run(channel) for _ in range(3)]
        reads = [asyncio.ensure_future(call.read()) for call in calls]
        (refused,), running = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        failure = refused.exception()
        assert isinstance(failure, aio.AioRpcError)
        assert isinstance(status.decode(failure), errors.Busy)
        assert await serves(channel)
        servicer.go.set()
        assert [list(answer.chunk.token_ids) for answer in await asyncio.gather(*running)] == [
            [1],
            [1],
        ]
        assert list((await run(channel).read()).chunk.token_ids) == [1]


class Flooding(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """A service that sends more than fits into the buffers of a caller which reads nothing, and
    gives up.
    """

    def __init__(self) -> None:
        self.gave_up = 0

    async def StreamGenerate(self, request: object, context: Any) -> None:
        try:
            async with asyncio.timeout(0.1):
                while True:
                    await context.write(reply(range(100_000)))
        except TimeoutError:
            self.gave_up += 1
            raise errors.DeadlineExceeded("it read nothing") from None


async def test_a_call_that_has_ended_leaves_its_place_though_its_caller_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interceptor, "MAX_CONCURRENT_CALLS", 1)
    servicer = Flooding()
    async with rpc.serving("127.0.0.1", 0, servicer) as address, rpc.connect(address) as channel:
        calls = []
        for number in range(1, 4):
            calls.append(run(channel))
            await until(lambda number=number: servicer.gave_up == number)
        with pytest.raises(aio.AioRpcError) as failure:
            async for _ in calls[0]:
                pass
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED, "it reads after all"


async def test_many_new_calls_at_once_are_all_answered() -> None:
    """gRPC limits calls that no handler has begun to 1,000 by default and would cancel some of
    these.
    """
    servicer = Hanging()
    servicer.go.set()
    async with rpc.serving("127.0.0.1", 0, servicer) as address, rpc.connect(address) as channel:
        answers = await asyncio.gather(*(run(channel).read() for _ in range(CALLS)))
    assert [list(answer.chunk.token_ids) for answer in answers] == [[1]] * CALLS


async def test_reflection_lists_the_services() -> None:
    async with refusing(None) as channel:
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        make: Any = reflection_pb2_grpc.ServerReflectionStub
        stub = make(channel)
        answers = [
            answer async for answer in stub.ServerReflectionInfo(iter([asked]), timeout=LIMIT)
        ]
    names = {service.name for service in answers[0].list_services_response.service}
    assert names >= {VERIFIER, CLIENT_API, "grpc.health.v1.Health"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_port_in_use_is_refused_by_its_number(host: str) -> None:
    async with rpc.serving(host, 0, object()) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(errors.Unusable, match=f"port {port} on {host}"):
            async with rpc.serving(host, port, object()):
                raise AssertionError("two servers share a port")


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_a_host_may_be_of_ipv6(host: str) -> None:
    """The host may have brackets or not, and the announced address can be connected to."""
    async with rpc.serving(host, 0, object()) as address, rpc.connect(address) as channel:
        assert address.startswith("[::1]:")
        assert await serves(channel)
    assert rpc.free_port(host) in rpc.FREE_PORTS
    with pages_served(host, 0, Pages(CollectorRegistry())) as metrics:
        assert metrics.startswith("[::1]:")
        assert await asyncio.to_thread(status_of, f"http://{metrics}/metrics") == 200


def status_of(url: str) -> int:
    with urlopen(url, timeout=LIMIT) as page:
        return int(page.status)


def test_a_port_that_is_kept_for_a_service_is_given_to_nobody_else() -> None:
    """Ray and others take free ports by the dozen before the service opens its own port."""
    kept = rpc.free_port("127.0.0.1")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        assert other.getsockname()[1] not in rpc.FREE_PORTS
        assert kept in rpc.FREE_PORTS


def test_a_kept_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", rpc.free_port("127.0.0.1")))
        taken = other.getsockname()[1]
        monkeypatch.setattr(rpc, "FREE_PORTS", range(taken, taken + 100))
        assert rpc.free_port("127.0.0.1") != taken
