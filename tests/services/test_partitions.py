"""A network that loses all packets, in one direction or both, is noticed; once it heals, it is used
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tandem.benchmarks.peers.delay import HOST, Link, State
from tandem.benchmarks.peers.delay import linked as proxied
from tandem.orchestrator.links.relays import VerifierLink
from tandem.protos.transport import heartbeat, rpc
from tests.services.peer import (
    HASTY,
    PATIENT,
    Peer,
    Subscriber,
    commits,
    linked_to,
    opening,
    patient,
    served,
)
from tests.services.test_client_heartbeats import (
    WHOLE,
    FrontEnd,
    client_of,
    first_chosen,
    none,
    tokens_of,
)
from tests.waiting import until

__all__ = ["first_chosen"]

WAYS = {
    "both": State(hung=True),
    "to the service": State(hung_up=True),
    "from the service": State(hung_down=True),
}


@asynccontextmanager
async def partitioned(peer: Peer) -> AsyncIterator[tuple[Link, VerifierLink, Subscriber]]:
    """Connect a link through a proxy to a service; yields it with a subscriber. Like the real
    services, the test's service sends messages whether or not it receives any.
    """

    async def beat() -> None:
        while True:
            await asyncio.sleep(heartbeat.SECONDS)
            peer.say.put_nowait(commits())

    with patient():
        async with (
            served(peer) as address,
            proxied(address) as proxy,
            linked_to(f"{HOST}:{proxy.port}") as (link, subscriber),
        ):
            beating = asyncio.create_task(beat())
            yield proxy, link, subscriber
            beating.cancel()


@pytest.mark.parametrize("way", WAYS)
async def test_a_service_beyond_a_partition_is_lost_and_used_again_when_it_is_healed(
    way: str,
) -> None:
    peer = Peer()
    async with partitioned(peer) as (proxy, link, subscriber):
        link.open(1, opening(), subscriber)
        await until(lambda: peer.sent("open"))
        await proxy.become(WAYS[way])
        heartbeat.MAX_MISSED = HASTY
        await until(lambda: subscriber.reported == ["lost"])
        assert not link.connected
        heartbeat.MAX_MISSED = PATIENT
        await proxy.become(State())
        await until(lambda: subscriber.reported == ["lost", "connected"])
        link.open(2, opening(), subscriber)
        await until(lambda: len(peer.sent("open")) == 2)


async def test_a_service_that_takes_long_to_receive_a_large_opening_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc, "CLIENT_OPTIONS", rpc.LIMITS)  # turns off gRPC's own pings
    peer = Peer()
    async with partitioned(peer) as (proxy, link, subscriber):
        heartbeat.MAX_MISSED = 60  # the service sends this many more heartbeats without progress
        await proxy.become(WAYS["to the service"])
        link.open(1, opening(100_000), subscriber)
        for _ in range(90):  # heartbeats
            await asyncio.sleep(heartbeat.SECONDS)
        assert link.connected and not subscriber.reported
        await proxy.become(State())
        await until(lambda: peer.sent("open"))
        assert peer.calls == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_beyond_a_partition_asks_another_front_end(
    way: str, first_chosen: None
) -> None:
    fronts = FrontEnd(none), FrontEnd(none)
    async with AsyncExitStack() as scope:
        first, second = [
            await scope.enter_async_context(rpc.serving(HOST, 0, front)) for front in fronts
        ]
        proxy = await scope.enter_async_context(proxied(first))
        client = await scope.enter_async_context(client_of(f"{HOST}:{proxy.port}", second))
        assert await tokens_of(client) == WHOLE
        await proxy.become(WAYS[way])
        heartbeat.MAX_MISSED = HASTY
        for _ in range(3):
            assert await tokens_of(client) == WHOLE
        assert len(fronts[1].received) == 3
        await proxy.become(State())
        await until(lambda: not client.front_ends.silent)
        asked = len(fronts[0].received)
        assert await tokens_of(client) == WHOLE
        assert len(fronts[0].received) == asked + 1


async def test_an_only_front_end_answers_as_soon_as_the_partition_is_healed() -> None:
    async with (
        rpc.serving(HOST, 0, FrontEnd(none)) as address,
        proxied(address) as proxy,
        client_of(f"{HOST}:{proxy.port}") as client,
    ):
        assert await tokens_of(client) == WHOLE
        await proxy.become(WAYS["both"])
        heartbeat.MAX_MISSED = HASTY
        answer = asyncio.create_task(tokens_of(client))
        await until(lambda: client.front_ends.silent)
        assert not answer.done()
        await proxy.become(State())
        assert await answer == WHOLE
