"""A client waits no longer than it takes to connect again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc import ChannelConnectivity as State

from tandem import AsyncClient
from tandem.client import client as client_module
from tandem.client import retry
from tandem.protos.transport import rpc
from tests.services.test_client_heartbeats import WHOLE, FrontEnd, none, tokens_of
from tests.waiting import until

HOST, NEVER = "127.0.0.1", 1e9


async def test_a_stream_goes_on_as_soon_as_the_front_end_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    class Channel:
        """A channel that counts how often its state is read."""

        def __init__(self, channel: Any) -> None:
            self.channel = channel

        def get_state(self, try_to_connect: bool) -> State:
            nonlocal looks
            looks += 1
            return self.channel.get_state(try_to_connect)

        async def close(self) -> None:
            await self.channel.close()

    monkeypatch.setattr(retry, "FIRST_PAUSE", NEVER)
    monkeypatch.setattr(retry, "LONGEST_PAUSE", NEVER)
    monkeypatch.setattr(client_module, "MIN_PAUSE_FRACTION", 0.0)
    port = rpc.free_port(HOST)
    async with AsyncClient(f"{HOST}:{port}") as client:
        client.front_ends.channels = [Channel(each) for each in client.front_ends.channels]
        reading = asyncio.create_task(tokens_of(client))
        await until(lambda: looks > 1, "the first attempt has failed")
        async with rpc.serving(HOST, port, FrontEnd(none)):
            assert await reading == WHOLE


@pytest.mark.parametrize(
    ("states", "after", "looks"),
    [
        ([*[State.READY] * 5, State.CONNECTING, State.READY], 0.0, 7),
        ([State.TRANSIENT_FAILURE, *[State.READY] * 9], 5.0, 6),
        ([State.IDLE, State.SHUTDOWN], NEVER, 2),
    ],
    ids=["is connected all the time", "is connected soon", "is closed"],
)
async def test_a_pause_ends_when_a_connection_that_was_lost_is_there_and_it_is_not_too_early(
    states: list[State], after: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read of the state takes a second of this clock."""
    looked = 0

    class Channel:
        def get_state(self, try_to_connect: bool) -> State:
            nonlocal looked
            assert try_to_connect
            looked += 1
            return states[looked - 1]

    channel: Any = Channel()
    monkeypatch.setattr(rpc, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(rpc, "monotonic", lambda: float(max(0, looked - 1)))
    await rpc.reconnected(channel, after)
    assert looked == looks
