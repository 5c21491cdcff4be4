"""Keeps a client's channels to its front ends, and tracks which front ends do not respond."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.protos.errors import Unusable
from tandem.protos.tls import Tls
from tandem.protos.transport import heartbeat, rpc
from tandem.v1 import orchestrator_pb2_grpc

NO_ANSWER = StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE


class FrontEnds:
    """The front ends of a client, identified by index. If a front end does not respond to one
    stream, all streams of the client avoid it until it responds to a health check, even with an
    error.
    """

    def __init__(self, addresses: Sequence[str], tls: Tls | None) -> None:
        """Open a channel to each address. Raises Unusable if a TLS file cannot be used."""
        self.channels = [rpc.connect(address, tls) for address in addresses]
        self.stubs = [orchestrator_pb2_grpc.OrchestratorServiceStub(c) for c in self.channels]
        self.silent: dict[int, asyncio.Task[None]] = {}
        self.closed = asyncio.Event()

    def __len__(self) -> int:
        return len(self.channels)

    def choose(self) -> int:
        """Return the index of a random front end among those that respond, or among all if none
        does.
        """
        answering = [number for number in range(len(self)) if number not in self.silent]
        return random.choice(answering or range(len(self)))

    def fell_silent(self, number: int) -> None:
        """Mark a front end as unresponsive until it responds to a health check."""
        if number not in self.silent and not self.closed.is_set():
            self.silent[number] = asyncio.create_task(self._until_it_answers(number))

    async def close(self) -> None:
        """Close all channels."""
        self.closed.set()
        watching = list(self.silent.values())
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self.channels))

    async def _until_it_answers(self, number: int) -> None:
        health: Any = health_pb2_grpc.HealthStub(self.channels[number])
        timeout = heartbeat.MAX_MISSED * heartbeat.SECONDS
        try:
            while True:
                try:
                    await health.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
                    return
                except aio.AioRpcError as failure:
                    if failure.code() not in NO_ANSWER:
                        return
                await asyncio.sleep(heartbeat.SECONDS)
        finally:
            del self.silent[number]


def client_tls(
    ca: str | Path | None, cert: str | Path | None = None, key: str | Path | None = None
) -> Tls | None:
    """Return the TLS files of a client, or None if the client does not use TLS. Raises Unusable."""
    if ca:
        return Tls(Path(ca), (cert and Path(cert)) or None, (key and Path(key)) or None)
    if cert or key:
        raise Unusable("tls_cert and tls_key need tls_ca")
    return None
