"""The benchmarks' simulated link delivers bytes in order, never early, and makes faults on
demand.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tandem.benchmarks.peers.delay import HOST, RESEND_SECONDS, SEGMENT, Link, State, linked
from tests.waiting import until

ROUND_TRIP = 0.05
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    """Serve an echo; yields its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    try:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def distant(state: State) -> AsyncIterator[tuple[Link, Streams]]:
    """Connect to an echo through a link in some state."""
    async with echo() as address, linked(address) as link:
        await link.become(state)
        reader, writer = await asyncio.open_connection(HOST, link.port)
        try:
            yield link, (reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def asked(streams: Streams, data: bytes) -> None:
    """Send a message, and return when all of it has come back."""
    reader, writer = streams
    writer.write(data)
    assert await reader.readexactly(len(data)) == data


async def a_whole_connection_later() -> None:
    """Return when another link has carried bytes there and back. By then, everything that was sent
    before and is not held has arrived, because one event loop does all the work.
    """
    async with distant(State()) as (_, streams):
        await asked(streams, b"later")


@pytest.mark.parametrize("extra", [0.0, 2 * ROUND_TRIP])
async def test_nothing_comes_before_a_round_trip_and_a_connection_takes_one_more(
    extra: float,
) -> None:
    """The added delay applies once, to the answer."""
    clock = asyncio.get_running_loop().time
    began = clock()
    async with distant(State(ROUND_TRIP, extra)) as (_, streams):
        await asked(streams, b"first")
        assert clock() >= began + 1.99 * ROUND_TRIP + extra
        began = clock()
        await asked(streams, b"second")
        assert clock() >= began + 0.99 * ROUND_TRIP + extra


async def test_a_lost_segment_comes_when_it_was_sent_again() -> None:
    clock = asyncio.get_running_loop().time
    async with distant(State(loss=1.0)) as (_, streams):
        began = clock()
        await asked(streams, b"there and back")
        assert clock() >= began + 1.99 * RESEND_SECONDS
    state = State(ROUND_TRIP, loss=0.01)
    late = sum(state.seconds(SEGMENT, back=False) > RESEND_SECONDS for _ in range(10_000))
    assert 30 < late < 300


@pytest.mark.parametrize("rate", [80_000.0, 800_000.0])
async def test_a_slow_link_carries_so_many_bits_per_second_for_all_its_connections(
    rate: float,
) -> None:
    """The rate applies to each direction, and bytes that wait longer are not lost."""
    # bytes that the rate carries in a tenth of a second
    clock, half = asyncio.get_running_loop().time, b"x" * int(rate / 80)
    async with distant(State(ROUND_TRIP, rate=rate)) as (link, first):
        second = await asyncio.open_connection(HOST, link.port)
        await asked(first, b"is there"), await asked(second, b"too")
        began = clock()
        await asyncio.gather(asked(first, half), asked(second, half))
        assert clock() - began >= 0.99 * (0.2 + ROUND_TRIP)
        second[1].close()


def test_what_leaves_on_a_slow_link_waits_for_what_left_before_in_its_direction() -> None:
    link = Link(HOST, 1)
    link.state = State(rate=8000.0)
    assert link.leave(1000, False, 5.0) == 6.0
    assert link.leave(500, False, 5.25) == 6.5
    assert link.leave(1000, True, 5.25) == 6.25
    assert link.leave(1000, False, 10.0) == 11.0
    link.state = State()
    assert link.leave(1000, False, 10.5) == 10.5


async def test_bytes_keep_their_order_while_the_delay_shrinks() -> None:
    async with distant(State(ROUND_TRIP)) as (link, (reader, writer)):
        sent = b""
        for number in range(200):
            await link.become(State(ROUND_TRIP * (1 - number / 200), extra=0.001, jitter=0.01))
            writer.write(piece := number.to_bytes(2, "big") * 500)
            sent += piece
            await asyncio.sleep(0)
        assert await reader.readexactly(len(sent)) == sent
        assert link.carried == {"up": len(sent), "down": len(sent)}


async def test_a_hung_link_keeps_connections_and_bytes() -> None:
    async with distant(State()) as (link, (reader, writer)):
        await asked((reader, writer), b"before")
        await link.become(State(hung=True))
        writer.write(b"meanwhile")
        answer = asyncio.create_task(reader.readexactly(9))
        await until(lambda: link.carried["up"] == len(b"beforemeanwhile"))
        await a_whole_connection_later()
        assert not answer.done()
        await link.become(State())
        assert await answer == b"meanwhile"


async def test_a_link_that_refuses_closes_connections_and_takes_none_until_it_is_told() -> None:
    async with distant(State()) as (link, (reader, writer)):
        await asked((reader, writer), b"before")
        await link.become(State(refusing=True))
        with suppress(ConnectionError):
            assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, link.port)
        await link.become(State())
        again, writing = await asyncio.open_connection(HOST, link.port)
        await asked((again, writing), b"after")
        writing.close()


async def test_an_end_that_closes_closes_the_other_behind_all_bytes() -> None:
    async with distant(State(ROUND_TRIP)) as (link, (reader, writer)):
        writer.write(b"last words")
        writer.write_eof()
        assert await reader.read() == b""
        assert link.carried["up"] == len(b"last words")


async def test_the_command_takes_states_and_tells_bytes() -> None:
    async with echo() as address:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tandem.benchmarks.peers.delay", address),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin and process.stdout
        host, _, port = json.loads(await process.stdout.readline())["address"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asked((reader, writer), b"12345")
        process.stdin.write(b'{"hung": true}\n')
        assert json.loads(await process.stdout.readline()) == {"up": 5, "down": 5}
        process.stdin.close()
        assert await process.wait() == 0
        writer.close()


async def test_a_link_that_hangs_in_one_direction_still_carries_the_other() -> None:
    async with distant(State()) as (link, (reader, writer)):
        await link.become(State(hung_down=True))
        writer.write(b"there")
        await until(lambda: link.carried == {"up": 5, "down": 5})
        answer = asyncio.create_task(reader.readexactly(5))
        await a_whole_connection_later()
        assert not answer.done()
        await link.become(State(hung_up=True))
        assert await answer == b"there"
        writer.write(b"again")
        await until(lambda: link.carried["up"] == 10)
        await a_whole_connection_later()
        assert link.carried["down"] == 5, "the service has not received it"
        await link.become(State())
        assert await reader.readexactly(5) == b"again"
