"""A TCP proxy that makes a service distant: every byte arrives half a round trip later, in order.
All connections share the bandwidth, which can be limited. The proxy can also delay answers for
longer, vary delays, lose segments, which TCP then sends again, hang in one direction or in both, or
refuse all connections.

    python -m tandem.benchmarks.peers.delay HOST:PORT

The proxy reads states of the link from standard input, one JSON object per line, and answers each
with the bytes carried so far. It does not interpret the bytes that it carries.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer

from tandem.protos.service.process import announce

HOST = "127.0.0.1"
SEGMENT = 1448  # bytes of a segment on Ethernet
RESEND_SECONDS = 0.2  # TCP resends a lost segment after this time plus a round trip


@dataclass(frozen=True, slots=True)
class State:
    """The state of a link: its delays in seconds, its losses and limits, and what it does not
    forward.
    """

    round_trip: float = 0.0
    extra: float = 0.0  # further delay of bytes that come back
    jitter: float = 0.0  # seconds by which a delay may be longer, uniformly distributed
    loss: float = 0.0  # share of the segments that TCP has to send again
    rate: float = 0.0  # bits per second in each direction; 0 means no limit
    hung: bool = False  # whether connections stay and all their bytes wait
    hung_up: bool = False  # whether only bytes to the service wait
    hung_down: bool = False  # whether only bytes from the service wait
    refusing: bool = False  # whether connections are closed, and new ones refused

    def waits(self, back: bool) -> bool:
        """Return whether bytes of a direction wait."""
        return self.hung or (self.hung_down if back else self.hung_up)

    @property
    def longest(self) -> float:
        """The most seconds that bytes take, there or back, if a segment is lost at most once."""
        again = RESEND_SECONDS + self.round_trip if self.loss else 0.0
        return self.round_trip + self.extra + self.jitter + again

    def seconds(self, size: int, back: bool) -> float:
        """Draw the seconds that `size` bytes take in a direction."""
        delay = self.round_trip / 2 + (self.extra if back else 0.0)
        delay += random.uniform(0.0, self.jitter)
        segments = -(-size // SEGMENT)
        if random.random() >= (1.0 - self.loss) ** segments:
            delay += RESEND_SECONDS + self.round_trip
        return delay


@dataclass(slots=True)
class Way:
    """One direction of a connection, and the bytes on their way. None stands for the end."""

    link: Link
    back: bool
    due: float = 0.0  # time at which the newest bytes arrive; none sent later may arrive before
    carried: int = 0
    end: asyncio.Transport | None = None
    _sent: deque[bytes | None] = field(default_factory=deque)
    _arrived: int = 0  # number of entries of `_sent` that have arrived but wait

    def send(self, data: bytes | None) -> None:
        """Send bytes, or None for the end, on their way."""
        loop, size = asyncio.get_running_loop(), len(data or b"")
        self.carried += size
        self._sent.append(data)
        left = self.link.leave(size, self.back, loop.time())
        self.due = max(self.due, left + self.link.state.seconds(size, self.back))
        if self.due <= loop.time():
            self._arrive()
        else:
            loop.call_at(self.due, self._arrive)

    def _arrive(self) -> None:
        self._arrived += 1  # any timer that fires counts for the oldest bytes on their way
        self.deliver()

    def deliver(self) -> None:
        """Hand arrived bytes to the end of the connection, if there is one and the link is not
        hung.
        """
        while self._arrived and self.end and not self.link.state.waits(self.back):
            self._arrived -= 1
            data = self._sent.popleft()
            if data is None:
                self.end.close()
            elif not self.end.is_closing():  # the connection may be lost already
                self.end.write(data)


class End(asyncio.Protocol):
    """One end of a connection, at which one direction begins and the other ends."""

    def __init__(self, away: Way, home: Way) -> None:
        self._away = away
        self._home = home

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (asyncio calls this), and deliver bytes that have arrived already."""
        assert isinstance(transport, asyncio.Transport)
        self._home.end = transport
        self._home.deliver()

    def data_received(self, data: bytes) -> None:
        """Send received bytes on their way; asyncio calls this."""
        self._away.send(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Send the connection's end on its way after all bytes; asyncio calls this."""
        self._away.send(None)


class Link:
    """A link that listens on a port, which never changes, and forwards connections to a service."""

    def __init__(self, host: str, port: int) -> None:
        self.state = State()
        self.port = 0
        self._service = (host, port)
        self.busy = {False: 0.0, True: 0.0}  # time until which each direction sends; True is back
        self._ways: list[tuple[Way, Way]] = []
        self._dialling: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def carried(self) -> dict[str, int]:
        """The bytes carried so far, up to the service and down from it."""
        up, down = (sum(pair[side].carried for pair in self._ways) for side in (0, 1))
        return {"up": up, "down": down}

    def leave(self, size: int, back: bool, now: float) -> float:
        """Queue `size` bytes in a direction, behind the bytes that wait there. Returns the time at
        which the last byte leaves.
        """
        if not self.state.rate:
            return now
        self.busy[back] = max(now, self.busy[back]) + 8 * size / self.state.rate
        return self.busy[back]

    async def become(self, state: State) -> None:
        """Change the link's state; bytes that are on their way keep their time of arrival."""
        self.state = state
        if state.refusing:
            await self._close()
            return
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._accept, HOST, self.port)
            self.port = self._server.sockets[0].getsockname()[1]
        for way in (way for pair in self._ways for way in pair):
            way.deliver()

    async def _close(self) -> None:
        for task in self._dialling:
            task.cancel()
        for way in (way for pair in self._ways for way in pair if way.end):
            assert way.end is not None
            way.end.abort()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    def _accept(self) -> End:
        """Accept a client's connection. Its first bytes leave after a round trip, as in the
        handshake of TCP, and the service sees the connection when the bytes arrive.
        """
        loop = asyncio.get_running_loop()
        up, down = Way(self, back=False), Way(self, back=True)
        up.due = loop.time() + 1.5 * self.state.round_trip
        self._ways.append((up, down))
        task = loop.create_task(self._dial(up, down))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)
        return End(up, down)

    async def _dial(self, up: Way, down: Way) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(up.due - loop.time())
        try:
            await loop.create_connection(lambda: End(down, up), *self._service)
        except OSError:
            down.send(None)


@asynccontextmanager
async def linked(address: str) -> AsyncIterator[Link]:
    """Run a link to a service while the scope lasts."""
    host, _, port = address.rpartition(":")
    link = Link(host, int(port))
    await link.become(State())
    try:
        yield link
    finally:
        await link.become(State(refusing=True))


async def serve(address: str) -> None:
    """Run a link in the states that standard input gives, until standard input closes."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with linked(address) as link:
        announce("serving", role="delay", address=f"{HOST}:{link.port}")
        async for line in reader:
            told: dict[str, Any] = json.loads(line)
            await link.become(State(**(asdict(link.state) | told)))
            print(json.dumps(link.carried), flush=True)


def main(address: Annotated[str, typer.Argument(help="HOST:PORT of the service")]) -> None:
    """Forward connections to a service as if it were far away."""
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # epoll counts whole milliseconds
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(serve(address))


if __name__ == "__main__":
    typer.run(main)
