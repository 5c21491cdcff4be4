"""The round workers as the front end sees them: who is up, who has least to do, and what happens
when one is lost.

Knows nothing of how workers are started: a Supervisor tells where worker i serves, as often as it
is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

import grpc
import structlog

from orchestrator.workers.worker import CELL_KEY
from protos.errors import TransportLost, Unavailable, Unusable
from protos.tandem.v1 import rounds_pb2, rounds_pb2_grpc
from protos.transport import rpc, status

MOST_LOSSES = 5  # in a row without progress: a poison request must not kill the pool
TURNS = 1 << 20  # more than one worker takes for a request: one for every opening
READY_SECONDS = 30.0
MEND_SECONDS = 2.0

log = structlog.get_logger()


class Supervisor(Protocol):
    """Keeps a number of round workers alive."""

    count: int
    key: str

    async def endpoint(self, index: int) -> str:
        """Where worker `index` serves; waits until it lives."""


@dataclass(slots=True, eq=False)
class Connection:
    """A channel to one worker and the requests that run over it; a lost one is closed when the last
    of them is gone.
    """

    channel: grpc.aio.Channel
    users: int = 0
    lost: bool = False

    async def release(self) -> None:
        """One request less."""
        self.users -= 1
        if self.lost and self.users == 0:
            await self.channel.close()


class WorkerPool:
    """Runs requests on round workers; a lost worker costs a resume, never an error."""

    def __init__(self, supervisor: Supervisor, resumed: Callable[[], None]) -> None:
        self._supervisor, self._resumed = supervisor, resumed
        self._living: dict[int, Connection] = {}
        self._mending: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    @property
    def living(self) -> int:
        """Workers that serve now."""
        return len(self._living)

    async def __aenter__(self) -> WorkerPool:
        """Serve as soon as one worker does; raises Unusable if none comes up."""
        for index in range(self._supervisor.count):
            self._start_mending(index)
        try:
            await self._pick()
        except Unavailable as error:
            await self.__aexit__()
            raise Unusable(f"no round worker came up within {READY_SECONDS:.0f} s") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._mending:
            task.cancel()
        await asyncio.gather(*self._mending, return_exceptions=True)
        for connection in self._living.values():
            await connection.channel.close()

    async def run(
        self, request: rounds_pb2.RunRequest
    ) -> AsyncGenerator[rounds_pb2.RunResponse, None]:
        """Stream the steps of a request. Appends what was streamed to `request.completion`, which
        is all that another worker needs to go on. Raises a TandemError.
        """
        losses = 0
        while True:
            index, connection = await self._pick()
            connection.users += 1
            call = rounds_pb2_grpc.RoundWorkerServiceStub(connection.channel).Run(
                request,
                metadata=rpc.metadata_of(request.request_id, (CELL_KEY, self._supervisor.key)),
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
                losses += 1
                self._judge(failure, losses)
                log.warning("a round worker was lost", worker=index, tokens=len(request.completion))
                request.first_turn += TURNS
                self._resumed()
                if failure.code() is grpc.StatusCode.UNAVAILABLE:  # else this stream alone
                    self._lose(index, connection)
            finally:
                call.cancel()
                await connection.release()

    def _judge(self, failure: grpc.aio.AioRpcError, losses: int) -> None:
        """Raise what a failed stream stands for, unless another worker may go on."""
        error = status.decode(failure)
        if not isinstance(error, TransportLost):
            raise error from None
        if losses > MOST_LOSSES:
            raise Unavailable(f"{losses} round workers were lost in a row") from None

    async def _pick(self) -> tuple[int, Connection]:
        """The living worker with least to do."""
        try:
            async with asyncio.timeout(READY_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._living)
                return min(self._living.items(), key=lambda item: (item[1].users, item[0]))
        except TimeoutError:
            raise Unavailable("no round worker is up") from None

    def _lose(self, index: int, connection: Connection) -> None:
        """Take a worker out and bring it back in the background; several requests may notice the
        same loss.
        """
        if self._living.get(index) is not connection:
            return
        del self._living[index]
        connection.lost = True
        self._start_mending(index)

    def _start_mending(self, index: int) -> None:
        task = asyncio.create_task(self._mend(index))
        self._mending.add(task)
        task.add_done_callback(self._mending.discard)

    async def _mend(self, index: int) -> None:
        """Connect to a worker, as often as it takes: it may die again before it answers."""
        while True:
            try:
                channel = rpc.connect(await self._supervisor.endpoint(index))
            except Exception as error:  # whatever the supervisor meets, the worker must come back
                log.warning(
                    "a round worker has no endpoint", worker=index, problem=type(error).__name__
                )
                await asyncio.sleep(MEND_SECONDS)
                continue
            try:
                await asyncio.wait_for(channel.channel_ready(), MEND_SECONDS)
                break
            except TimeoutError:
                await channel.close()
        async with self._changed:
            self._living[index] = Connection(channel)
            self._changed.notify_all()
