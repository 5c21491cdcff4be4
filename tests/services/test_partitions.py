"""A network that loses everything, in one direction or both, is noticed, and used again when it is
healed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tandem import AsyncClient
from tandem.benchmarks.peers.delay import HOST, Link, State
from tandem.benchmarks.peers.delay import linked as proxied
from tandem.orchestrator.workers.worker import VerifierLink, verifier_link
from tandem.protos.transport import heartbeat, rpc
from tests.services.peer import Peer, Subscriber, facts, opening, served, until
from tests.services.test_client_heartbeats import LAST, FrontEnd, none, tokens_of, wait

WAYS = {
    "both": State(hung=True),
    "to the service": State(hung_up=True),
    "from the service": State(hung_down=True),
}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed soon."""
    monkeypatch.setattr(heartbeat, "SECONDS", 0.05)


@asynccontextmanager
async def partitioned(peer: Peer) -> AsyncIterator[tuple[Link, VerifierLink, Subscriber]]:
    """A link to a service beyond a proxy, connected, and a subscriber of it."""
    async with (
        served(peer) as address,
        proxied(address) as proxy,
        rpc.connect(f"{HOST}:{proxy.port}") as channel,
        verifier_link(channel) as link,
    ):
        subscriber = Subscriber()
        link.subscribe(subscriber)
        await until(lambda: link.connected)
        subscriber.reported.clear()
        yield proxy, link, subscriber


def beating(peer: Peer) -> asyncio.Task[None]:
    """A service that sends something whether it receives anything or not, as ours do."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(heartbeat.SECONDS)
            peer.say.put_nowait(facts())

    return asyncio.create_task(beat())


@pytest.mark.parametrize("way", WAYS)
async def test_a_service_beyond_a_partition_is_lost_and_used_again_when_it_is_healed(
    way: str,
) -> None:
    peer = Peer()
    async with partitioned(peer) as (proxy, link, subscriber):
        task = beating(peer)
        link.open(1, opening(), subscriber)
        await until(lambda: peer.sent("open"))
        await proxy.become(WAYS[way])
        await until(lambda: subscriber.reported == ["lost"])
        await asyncio.sleep(10 * heartbeat.SECONDS)
        assert not link.connected
        await proxy.become(State())
        await until(lambda: subscriber.reported == ["lost", "connected"])
        link.open(2, opening(), subscriber)
        await until(lambda: len(peer.sent("open")) == 2)
        task.cancel()


async def test_a_service_that_takes_long_to_receive_a_large_opening_is_not_lost() -> None:
    peer = Peer()
    async with partitioned(peer) as (proxy, link, subscriber):
        task = beating(peer)
        await proxy.become(WAYS["to the service"])
        link.open(1, opening(100_000), subscriber)
        await asyncio.sleep(3 * heartbeat.MISSED * heartbeat.SECONDS)
        assert link.connected and not subscriber.reported
        await proxy.become(State())
        await until(lambda: peer.sent("open"))
        assert peer.calls == 1
        task.cancel()


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_beyond_a_partition_asks_another_front_end(way: str) -> None:
    async with AsyncExitStack() as scope:
        fronts = FrontEnd(wait), FrontEnd(none)
        first, second = [
            await scope.enter_async_context(rpc.serving(HOST, 0, front)) for front in fronts
        ]
        proxy = await scope.enter_async_context(proxied(first))
        addresses = f"{HOST}:{proxy.port}", second
        client = await scope.enter_async_context(AsyncClient(*addresses, retry_seconds=10.0))
        async with asyncio.timeout(20):
            while not fronts[0].received:
                assert await tokens_of(client) == list(range(LAST))
            await proxy.become(WAYS[way])
            for _ in range(5):
                assert await tokens_of(client) == list(range(LAST))
            await proxy.become(State())
            fronts[0].pause = none
            before = len(fronts[0].received)
            while len(fronts[0].received) == before:
                assert await tokens_of(client) == list(range(LAST))


async def test_an_only_front_end_answers_as_soon_as_the_partition_is_healed() -> None:
    front = FrontEnd(none)
    async with (
        rpc.serving(HOST, 0, front) as address,
        proxied(address) as proxy,
        AsyncClient(f"{HOST}:{proxy.port}", retry_seconds=30.0) as client,
    ):
        assert await tokens_of(client) == list(range(LAST))
        await proxy.become(WAYS["both"])
        answer = asyncio.create_task(tokens_of(client))
        await asyncio.sleep(20 * heartbeat.SECONDS)
        assert not answer.done()
        await proxy.become(State())
        assert await asyncio.wait_for(answer, 10) == list(range(LAST))
