"""The round workers as the front end sees them: who is up, who has least to do, and what happens when one is lost.

Knows nothing of how workers are started: a Supervisor tells where worker i serves, as often as it is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

import grpc
import structlog

from orchestrator.worker import CELL_KEY
from protos import rpc, status
from protos.errors import TransportLost, Unavailable
from protos.tandem.v1 import rounds_pb2, rounds_pb2_grpc

MOST_LOSSES = 5  # in a row without progress: a poison request must not kill the pool
READY_SECONDS = 30.0
MEND_SECONDS = 2.0

log = structlog.get_logger()


class Supervisor(Protocol):
    """Keeps a number of round workers alive."""

    count: int
    key: str

    async def endpoint(self, index: int) -> str:
        """Where worker `index` serves; waits until it lives."""


@dataclass(slots=True)
class Link:
    """The connection to one worker; None while it is being brought back."""

    index: int
    load: int = 0
    channel: grpc.aio.Channel | None = None


class WorkerPool:
    """Runs requests on round workers; a lost worker costs a resume, never an error."""

    def __init__(self, supervisor: Supervisor, resumed: Callable[[], None]) -> None:
        self._supervisor, self._resumed = supervisor, resumed
        self._links = [Link(index) for index in range(supervisor.count)]
        self._mending: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> WorkerPool:
        await asyncio.gather(*(self._mend(link) for link in self._links))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._mending:
            task.cancel()
        await asyncio.gather(*self._mending, return_exceptions=True)
        for link in self._links:
            if link.channel is not None:
                await link.channel.close()

    async def run(self, request: rounds_pb2.RunRequest) -> AsyncIterator[rounds_pb2.RunResponse]:
        """Stream the rounds of a request. Appends what was streamed to `request.completion`, which is all that
        another worker needs to go on. Raises a TandemError."""
        losses = 0
        while True:
            link = await self._pick()
            assert link.channel is not None
            channel = link.channel
            link.load += 1
            call = rounds_pb2_grpc.RoundWorkerServiceStub(channel).Run(
                request, metadata=rpc.metadata_of(request.request_id, (CELL_KEY, self._supervisor.key))
            )
            try:
                async for step in call:
                    request.completion.extend(step.tokens)
                    losses = 0
                    yield step
                    if step.finish_reason:
                        return
                return
            except grpc.aio.AioRpcError as failure:
                error = status.decode(failure)
                losses += 1
                if not isinstance(error, TransportLost) or losses > MOST_LOSSES:
                    raise error from None
                log.warning("a round worker was lost", worker=link.index, tokens=len(request.completion))
                self._resumed()
                self._lose(link, channel)
            finally:
                link.load -= 1
                call.cancel()

    async def _pick(self) -> Link:
        """The living worker with least to do."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(self._living), READY_SECONDS)
            except TimeoutError:
                raise Unavailable("no round worker is up") from None
            return min(self._living(), key=lambda link: link.load)

    def _living(self) -> list[Link]:
        return [link for link in self._links if link.channel is not None]

    def _lose(self, link: Link, channel: grpc.aio.Channel) -> None:
        """Take a worker out and bring it back in the background; several requests may notice the same loss."""
        if link.channel is not channel:
            return
        link.channel = None
        task = asyncio.create_task(self._mend(link, channel))
        self._mending.add(task)
        task.add_done_callback(self._mending.discard)

    async def _mend(self, link: Link, lost: grpc.aio.Channel | None = None) -> None:
        """Connect to a worker, as often as it takes: it may die again before it answers."""
        if lost is not None:
            await lost.close()
        while True:
            channel = rpc.connect(await self._supervisor.endpoint(link.index))
            try:
                await asyncio.wait_for(channel.channel_ready(), MEND_SECONDS)
                break
            except TimeoutError:
                await channel.close()
        async with self._changed:
            link.channel = channel
            self._changed.notify_all()
