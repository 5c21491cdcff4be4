"""A client does not wait for longer than it takes to be connected again."""

from __future__ import annotations

import asyncio

import pytest

from tandem import AsyncClient
from tandem.client import client as client_module
from tandem.client import retry
from tandem.protos.transport import rpc
from tests.services.test_client_heartbeats import LAST, FrontEnd, none, tokens_of

HOST, MANY = "127.0.0.1", 1000.0


async def test_a_stream_goes_on_as_soon_as_the_front_end_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE", MANY)
    monkeypatch.setattr(retry, "LONGEST_PAUSE", MANY)
    monkeypatch.setattr(client_module, "EARLIEST", 0.0)
    port = rpc.free_port(HOST)
    async with AsyncClient(f"{HOST}:{port}", retry_seconds=60) as client, asyncio.timeout(20):
        reading = asyncio.create_task(tokens_of(client))
        await asyncio.sleep(0.5)
        assert not reading.done()
        async with rpc.serving(HOST, port, FrontEnd(none)):
            assert await reading == list(range(LAST))


async def test_a_front_end_that_is_connected_is_not_asked_early() -> None:
    async with rpc.serving(HOST, 0, FrontEnd(none)) as address:
        channel = rpc.connect(address)
        await channel.channel_ready()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rpc.reconnected(channel, after=0.0), 0.3)
        await channel.close()


async def test_connections_that_are_made_and_lost_do_not_end_a_pause_at_once() -> None:
    async with rpc.serving(HOST, 0, FrontEnd(none)) as address:
        channel = rpc.connect(address)
        waiting = asyncio.create_task(rpc.reconnected(channel, after=1.0))
        await asyncio.sleep(0)  # it has seen that there is no connection
        await channel.channel_ready()
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await asyncio.wait_for(waiting, 20)
        await channel.close()


async def test_a_channel_that_is_closed_ends_the_wait() -> None:
    channel = rpc.connect(f"{HOST}:{rpc.free_port(HOST)}")
    waiting = asyncio.create_task(rpc.reconnected(channel, after=0.0))
    await asyncio.sleep(0.1)
    await channel.close()
    await asyncio.wait_for(waiting, 20)
    await rpc.reconnected(channel, after=0.0)
