"""A load balancer for connections, like a Kubernetes Service: each new connection is forwarded to
the address that is chosen at that time, and stays there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

HOST = "127.0.0.1"
CHUNK = 1 << 16  # maximum bytes of one read


@asynccontextmanager
async def balanced(choose: Callable[[], str]) -> AsyncIterator[str]:
    """Forward each new connection to the address that `choose` returns at that time. Yields the
    balancer's own address.
    """

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = choose().rpartition(":")
        try:
            back, there = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_forward(reader, there), _forward(back, writer))

    async with await asyncio.start_server(connected, HOST, 0) as server:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while content := await reader.read(CHUNK):
            writer.write(content)
            await writer.drain()
    writer.close()
