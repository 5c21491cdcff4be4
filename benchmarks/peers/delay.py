"""A TCP proxy that simulates a distant service: every byte arrives half a round trip later, in
order. All connections share the bandwidth, which can be limited. The proxy can also delay answers
for longer, vary delays, simulate lost segments that TCP resends, hang in one direction or in both,
or refuse all connections.

    python -m tandem.benchmarks.peers.delay HOST:PORT

The proxy reads new states of the link from standard input, one JSON object per line, and answers
each line with the bytes carried so far. The proxy does not interpret the bytes that it forwards.
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
    """The state of a link: delays in seconds, losses, the rate limit, and which traffic is held
    back.
    """

    round_trip: float = 0.0
    extra: float = 0.0  # additional delay of bytes from the service
    jitter: float = 0.0  # maximum of the random seconds that are added to each delay
    loss: float = 0.0  # share of the segments that are lost and resent
    rate: float = 0.0  # bits per second in each direction; 0 means no limit
    hung: bool = False  # whether all bytes are held back while connections stay open
    hung_up: bool = False  # whether bytes to the service are held back
    hung_down: bool = False  # whether bytes from the service are held back
    refusing: bool = False  # whether connections are closed and new ones are refused

    def waits(self, back: bool) -> bool:
        """Return whether the bytes of a direction are held back."""
        return self.hung or (self.hung_down if back else self.hung_up)

    @property
    def longest(self) -> float:
        """An upper bound on the seconds that bytes take, if each segment is lost at most once."""
        again = RESEND_SECONDS + self.round_trip if self.loss else 0.0
        return self.round_trip + self.extra + self.jitter + again

    def seconds(self, size: int, back: bool) -> float:
        """Return a random delay in seconds for `size` bytes in a direction."""
        delay = self.round_trip / 2 + (self.extra if back else 0.0)
        delay += random.uniform(0.0, self.jitter)
        segments = -(-size // SEGMENT)
        if random.random() >= (1.0 - self.loss) ** segments:
            delay += RESEND_SECONDS + self.round_trip
        return delay


@dataclass(slots=True)
class Way:
    """One direction of a connection, and the bytes in transit. None stands for the end of the
    connection.
    """

    link: Link
    back: bool
    due: float = 0.0  # arrival time of the newest bytes; later bytes do not arrive earlier
    carried: int = 0
    end: asyncio.Transport | None = None
    _sent: deque[bytes | None] = field(default_factory=deque)
    _arrived: int = 0  # number of entries of `_sent` that have arrived but are held back

    def send(self, data: bytes | None) -> None:
        """Put bytes, or None for the end of the connection, in transit."""
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
        self._arrived += 1  # timers may fire in any order, but bytes arrive in order
        self.deliver()

    def deliver(self) -> None:
        """Write arrived bytes to the receiving end of the connection, if it is open and the link
        does not hold them back.
        """
        while self._arrived and self.end and not self.link.state.waits(self.back):
            self._arrived -= 1
            data = self._sent.popleft()
            if data is None:
                self.end.close()
            elif not self.end.is_closing():  # the connection may be lost already
                self.end.write(data)


class End(asyncio.Protocol):
    """One end of a connection: bytes received here leave in one direction, and bytes of the other
    direction arrive here.
    """

    def __init__(self, away: Way, home: Way) -> None:
        self._away = away
        self._home = home

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: store the transport, and deliver bytes that have already arrived."""
        assert isinstance(transport, asyncio.Transport)
        self._home.end = transport
        self._home.deliver()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: put received bytes in transit."""
        self._away.send(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: put the end of the connection in transit after all bytes."""
        self._away.send(None)


class Link:
    """A link that listens on a fixed port, and forwards connections to a service."""

    def __init__(self, host: str, port: int) -> None:
        self.state = State()
        self.port = 0
        self._service = (host, port)
        # time until which each direction is busy; the key True stands for bytes from the service
        self.busy = {False: 0.0, True: 0.0}
        self._ways: list[tuple[Way, Way]] = []
        self._dialling: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def carried(self) -> dict[str, int]:
        """The bytes carried so far, to the service (`up`) and from it (`down`)."""
        up, down = (sum(pair[side].carried for pair in self._ways) for side in (0, 1))
        return {"up": up, "down": down}

    def leave(self, size: int, back: bool, now: float) -> float:
        """Queue `size` bytes in a direction, after the bytes that are already queued. Returns the
        time at which the last byte leaves.
        """
        if not self.state.rate:
            return now
        self.busy[back] = max(now, self.busy[back]) + 8 * size / self.state.rate
        return self.busy[back]

    async def become(self, state: State) -> None:
        """Change the link's state. Bytes in transit keep their arrival time."""
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
        """Accept a client's connection. The client's first bytes leave after a round trip, which
        simulates the TCP handshake. The connection to the service is opened when these bytes
        arrive.
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
    """Run a link to a service for the duration of the context."""
    host, _, port = address.rpartition(":")
    link = Link(host, int(port))
    await link.become(State())
    try:
        yield link
    finally:
        await link.become(State(refusing=True))


async def serve(address: str) -> None:
    """Run a link with the states that are read from standard input, until standard input closes."""
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
    """Forward connections to a service with the delays of a distant service."""
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # epoll rounds waits to 1 ms
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(serve(address))


if __name__ == "__main__":
    typer.run(main)
