"""Reports through `grpc.health.v1` whether a process can serve.

The empty service name stands for the process, which is SERVING as long as it lives. The full name
of each service has the status SERVING while no owner reports a problem. An owner is a part of the
process that can tell whether the process can serve.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Any

import grpc
import structlog
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.protos.errors import Busy
from tandem.protos.transport.status import is_cancelled

Request = health_pb2.HealthCheckRequest
Response = health_pb2.HealthCheckResponse
MAX_WATCHES = 64  # maximum number of Watch calls at once per connection
log = structlog.get_logger()


class Health(health_pb2_grpc.HealthServicer):
    """The health of a process, according to the reports of all owners. It must be created and used
    on a single event loop.
    """

    def __init__(self) -> None:
        self._names = {""}
        self._problems: dict[str, str] = {}
        self._closed = False
        self._watches = Counter[str]()  # number of running calls of Watch by connection
        self._changed = asyncio.Event()

    def report(self, owner: str, problem: str | None) -> None:
        """Record why an owner cannot serve now. If `problem` is None, the owner can serve."""
        if self._problems.get(owner) == problem:
            return
        if problem:
            self._problems[owner] = problem
            log.warning("not serving", owner=owner, problem=problem)
        else:
            del self._problems[owner]
            log.warning("serving again", owner=owner, others=list(self._problems.values()))
        self._notify()

    @property
    def serving(self) -> bool:
        """Whether no owner has a problem, and the process is not stopping."""
        return not (self._problems or self._closed)

    @property
    def problems(self) -> Sequence[str]:
        """The reasons why services cannot serve; empty if they can."""
        return list(self._problems.values())

    async def until(self, serving: bool, seconds: float | None = None) -> None:
        """Wait until the property `serving` equals the argument, for at most `seconds` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.serving != serving:
                    await self._changed.wait()

    def know(self, names: Iterable[str]) -> None:
        """Add the names of services that the process serves."""
        self._names |= set(names)
        self._notify()

    def stopping(self) -> None:
        """Report all services as NOT_SERVING, because the process is stopping but still alive."""
        self._problems["process"] = "it is stopping"
        self._notify()

    def close(self) -> None:
        """Report that no service is available any more, because the process ends. Every Watch call
        receives this status and ends.
        """
        self._closed = True
        self._notify()

    async def Check(self, request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        """Return the current status of a service."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return Response(status=self._status(request.service))

    async def Watch(
        self, request: Any, context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        """Yield the status of a service, now and whenever it changes. Raises Busy if too many Watch
        calls run on the connection.
        """
        peer = context.peer()
        if self._watches[peer] >= MAX_WATCHES:
            raise Busy(f"{MAX_WATCHES} Watch calls run on this connection, which is the maximum")
        self._watches[peer] += 1
        try:
            sent = None
            while True:
                changed, closed = self._changed, self._closed
                status = self._status(request.service)
                if status != sent:
                    yield Response(status=status)
                sent = status
                # `self._closed` itself may have changed since this status was read
                if closed:
                    return
                await changed.wait()
        finally:
            self._watches[peer] -= 1
            if not self._watches[peer]:
                del self._watches[peer]

    def _status(self, name: str) -> int:
        if name not in self._names:
            return int(Response.SERVICE_UNKNOWN)
        away = self._closed or (name and self._problems)
        return int(Response.NOT_SERVING if away else Response.SERVING)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def is_serving(channel: aio.Channel, service: str, seconds: float) -> bool:
    """Tell whether a service reports within `seconds` seconds that it serves. The result is False
    if the channel is closed during the call, which gRPC reports as a cancellation.
    """
    return await _status(channel, service, seconds) == Response.SERVING


async def answers(channel: aio.Channel, seconds: float) -> bool:
    """Tell whether a process reports any status within `seconds` seconds."""
    return await _status(channel, "", seconds) is not None


async def _status(channel: aio.Channel, service: str, seconds: float) -> int | None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    try:
        response = await stub.Check(Request(service=service), timeout=seconds, wait_for_ready=True)
    except aio.AioRpcError:
        return None
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return None
    return int(response.status)
