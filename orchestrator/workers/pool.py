"""The pool of round workers: which ones are connected, which has the fewest requests, and what
happens when one is lost.

Does not start workers: a Supervisor knows at which address worker i serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import structlog

from tandem.orchestrator.fleet.membership import Membership
from tandem.orchestrator.workers.attendance import attend
from tandem.orchestrator.workers.supervisor import Supervisor
from tandem.protos.cancelled import is_cancelled
from tandem.protos.errors import TransportLost, Unavailable, Unusable
from tandem.protos.rounds import RunRequest, Step
from tandem.protos.service.tasks import background, first_done
from tandem.protos.transport import rpc, status
from tandem.protos.transport.key import WORKER_KEY
from tandem.protos.wire.rounds import decode_step, encode_run
from tandem.v1 import rounds_pb2_grpc

MAX_LOSSES = 5  # in a row without a step: a request that kills workers must not kill them all
TURNS = 1 << 20  # more than one worker needs for a request: one for every opening
READY_SECONDS = 30.0
RECONNECT_SECONDS = 2.0

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Connection:
    """A channel to one worker, and the calls of the requests that run there; a lost one is closed
    when the last of them is gone.
    """

    channel: grpc.aio.Channel
    calls: set[Any] = field(default_factory=set)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    silent: bool = False

    def end(self) -> None:
        """The worker does not answer: no call will."""
        self.silent = not self.lost.is_set()
        self.lost.set()
        for call in self.calls if self.silent else ():
            call.cancel()

    async def release(self, call: Any = None) -> None:
        """One call less."""
        self.calls.discard(call)
        if self.lost.is_set() and not self.calls:
            await self.channel.close()


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A round worker as the front end sees it, and how many requests it runs."""

    index: int
    connected: bool
    requests: int
    reserve: bool


class WorkerPool:
    """Runs requests on round workers; a lost worker costs a resume, never an error."""

    def __init__(
        self, supervisor: Supervisor, membership: Membership, resumed: Callable[[], None]
    ) -> None:
        """Workers use the replicas of `membership`; `resumed` is called for each request that goes
        on after a loss.
        """
        self._supervisor, self._membership, self._resumed = supervisor, membership, resumed
        self._metadata = ((WORKER_KEY, supervisor.access.key),)
        self._connections: dict[int, Connection] = {}
        self._changed = asyncio.Condition()
        self._scope = AsyncExitStack()

    @property
    def connected(self) -> int:
        """Number of workers that serve now."""
        return len(self._connections)

    @property
    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Of all workers."""
        reserve, found = self._supervisor.reserve, self._connections
        counts = {index: len(each.calls) for index, each in found.items()}
        return tuple(
            WorkerStatus(index, index in found, counts.get(index, 0), index == reserve)
            for index in range(self._supervisor.count)
        )

    async def __aenter__(self) -> WorkerPool:
        """Serve as soon as one worker does; raises Unusable if none comes up."""
        workers = range(self._supervisor.count)
        async with AsyncExitStack() as scope:
            await scope.enter_async_context(background(*map(self._keep_connected, workers)))
            try:
                await self._pick()
            except Unavailable as error:
                late = f"no round worker came up within {READY_SECONDS:.0f} s"
                raise Unusable(late) from error
            self._scope = scope.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._scope.__aexit__(*error)

    async def run(self, request: RunRequest) -> AsyncGenerator[Step, None]:
        """Stream the steps of a request; after a loss, which a stream that ends without a finish
        reason is too, another worker continues from the tokens so far. Raises a TandemError.
        """
        completion, losses, group = list(request.completion), 0, request.verifier_group
        while True:
            index, connection = await self._pick()
            call = rounds_pb2_grpc.RoundWorkerServiceStub(connection.channel).Run(
                encode_run(request), metadata=rpc.metadata_of(request.request_id, *self._metadata)
            )
            connection.calls.add(call)
            try:
                async for message in call:
                    step = decode_step(message)
                    completion.extend(step.tokens)
                    group = step.verifier_group or group
                    losses = 0
                    yield step
                    if step.finish:
                        return
            except grpc.aio.AioRpcError as failure:
                _raise_unless_lost(failure)
                if failure.code() is grpc.StatusCode.UNAVAILABLE:  # else this stream alone
                    self._lose(index, connection)
            except asyncio.CancelledError:
                if not connection.silent or is_cancelled():
                    raise
            finally:
                call.cancel()
                await connection.release(call)
            losses += 1
            if losses > MAX_LOSSES:
                raise Unavailable(f"{losses} round workers were lost in a row")
            log.warning(
                "a round worker was lost",
                worker=index,
                tokens=len(completion),
                request_id=request.request_id,
            )
            turn = request.first_turn + TURNS
            request = replace(
                request, completion=tuple(completion), first_turn=turn, verifier_group=group
            )
            self._resumed()

    async def _pick(self) -> tuple[int, Connection]:
        """The connected worker with the fewest requests."""
        try:
            async with asyncio.timeout(READY_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._connections)
                return min(self._connections.items(), key=self._load)
        except TimeoutError:
            raise Unavailable("no round worker is up") from None

    def _load(self, item: tuple[int, Connection]) -> tuple[bool, int, int]:
        index, connection = item
        return index == self._supervisor.reserve, len(connection.calls), index

    def _lose(self, index: int, connection: Connection) -> None:
        """Have a worker connected again; several requests may notice the same loss."""
        if self._connections.get(index) is connection:
            del self._connections[index]
            connection.lost.set()

    async def _keep_connected(self, index: int) -> None:
        """Connect to a worker, and again after every loss."""
        while True:
            connection = Connection(await self._connect(index))

            async def answering(connection: Connection = connection) -> None:
                async with self._changed:
                    self._connections[index] = connection
                    self._changed.notify_all()

            attending = attend(connection.channel, self._metadata, self._membership, answering)
            try:
                await first_done(connection.lost.wait(), attending)
            finally:
                answered = self._connections.pop(index, None) or connection.lost.is_set()
                connection.end()
                await connection.release()
            if not answered:
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _connect(self, index: int) -> grpc.aio.Channel:
        """A channel that is ready; the worker may die several times before it is."""
        while True:
            try:
                async with asyncio.timeout(READY_SECONDS):
                    address = await self._supervisor.endpoint(index)
            except Exception as error:  # whatever the supervisor raises, the worker must come back
                problem = type(error).__name__
                log.warning("a round worker has no endpoint", worker=index, problem=problem)
                self._supervisor.restart(index)
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            channel = rpc.connect(address, self._supervisor.access.tls)
            try:
                await asyncio.wait_for(channel.channel_ready(), RECONNECT_SECONDS)
                return channel
            except TimeoutError:
                await channel.close()


def _raise_unless_lost(failure: grpc.aio.AioRpcError) -> None:
    """Raise the error of a failed stream, unless another worker may continue."""
    error = status.decode(failure)
    if not isinstance(error, TransportLost):
        raise error from None
