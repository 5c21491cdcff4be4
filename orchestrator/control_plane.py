"""Whether the processes of Ray are there that start cells again."""

from __future__ import annotations

import asyncio
import socket

from tandem.protos.address import joined, split, unbracketed

CONNECT_SECONDS = 5.0


class ControlPlane:
    """Of the Ray that this process has joined: its control plane, and of a private one, that is
    `local`, its node.
    """

    def __init__(self, local: bool) -> None:
        import ray

        nodes = ray.nodes() if local else ()
        own = (joined(each["NodeManagerAddress"], each["NodeManagerPort"]) for each in nodes)
        self._addresses = [ray.get_runtime_context().gcs_address, *own]

    async def listens(self) -> bool:
        """Whether all of them do."""
        return await asyncio.to_thread(lambda: all(map(listens, self._addresses)))

    async def until_gone(self, seconds: float, missed: int) -> None:
        """Return when one of them has not listened so many times in a row, so far apart."""
        times = 0
        while times < missed:
            await asyncio.sleep(seconds)
            times = 0 if await self.listens() else times + 1


def listens(address: str) -> bool:
    """Whether anybody listens at HOST:PORT."""
    host, port = split(address)
    try:
        socket.create_connection((unbracketed(host), port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
