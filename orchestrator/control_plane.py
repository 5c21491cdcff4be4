"""Checks whether Ray's control plane, which restarts lost cells, is running."""

from __future__ import annotations

import asyncio
import socket

from tandem.protos.address import joined, split, unbracketed

CONNECT_SECONDS = 5.0


class ControlPlane:
    """The control plane of the Ray cluster that this process has joined. If the cluster is private
    (`local`), its node is checked too.
    """

    def __init__(self, local: bool) -> None:
        import ray

        nodes = ray.nodes() if local else ()
        own = (joined(each["NodeManagerAddress"], each["NodeManagerPort"]) for each in nodes)
        self._addresses = [ray.get_runtime_context().gcs_address, *own]

    async def listens(self) -> bool:
        """Tell whether the control plane accepts connections. If Ray is private, the node of Ray
        must accept connections too.
        """
        return await asyncio.to_thread(lambda: all(map(listens, self._addresses)))

    async def until_gone(self, seconds: float, missed: int) -> None:
        """Call `listens` every `seconds` seconds until it has returned False `missed` times in a
        row.
        """
        times = 0
        while times < missed:
            await asyncio.sleep(seconds)
            times = 0 if await self.listens() else times + 1


def listens(address: str) -> bool:
    """Tell whether a process listens at HOST:PORT."""
    host, port = split(address)
    try:
        socket.create_connection((unbracketed(host), port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
