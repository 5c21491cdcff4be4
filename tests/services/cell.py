"""A cell of round workers over real gRPC that count, and die where a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc import aio

from tandem.orchestrator.fleet.membership import Membership
from tandem.orchestrator.fleet.registration import Access
from tandem.orchestrator.workers.pool import WorkerPool
from tandem.protos.rounds import RunRequest
from tandem.protos.transport import heartbeat
from tandem.protos.transport.interceptor import ErrorInterceptor
from tandem.protos.transport.key import KeyInterceptor
from tandem.protos.types import SamplingParams
from tandem.v1 import rounds_pb2, rounds_pb2_grpc
from tests.services.peer import patient
from tests.waiting import until

KEY, COUNT = "key of the cell", 12
REQUEST = RunRequest("id", b"s" * 16, (1,), SamplingParams(), COUNT)
Context = aio.ServicerContext[Any, Any]
Death = Callable[["Worker", Context], Any]


async def abort(worker: Worker, context: Context) -> None:
    """The connection breaks: a status that nobody authored."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")


async def stop(worker: Worker, context: Context) -> None:
    """The process is killed and its port is gone."""
    await asyncio.shield(worker.end())  # which cancels this very call
    await asyncio.Event().wait()


class Silent(Exception):
    """Ends the stream with the status OK."""


async def end_early(worker: Worker, context: Context) -> None:
    """The stream ends, as if the generation had."""
    raise Silent


class Worker(rounds_pb2_grpc.RoundWorkerServiceServicer):
    """Counts up from the completion, two tokens a round; dies in front of each token in `deaths`,
    once.
    """

    def __init__(self, deaths: list[int], death: Death = abort, last: bool = False) -> None:
        self.deaths, self.death, self.after_the_last = deaths, death, last
        self.asked: list[list[int]] = []
        self.turns: list[int] = []
        self.load, self.most = 0, 0
        self.hung = False
        self.server: aio.Server | None = None

    async def Run(
        self, request: rounds_pb2.RunRequest, context: Context
    ) -> AsyncIterator[rounds_pb2.RunResponse]:
        self.asked.append(list(request.completion))
        self.turns.append(request.first_turn)
        self.load += 1
        self.most = max(self.most, self.load)
        try:
            for token in range(len(request.completion), COUNT, 2):
                await asyncio.sleep(0.001)
                if token in self.deaths:
                    self.deaths.remove(token)
                    await self.death(self, context)
                ends = token + 2 == COUNT
                finish = rounds_pb2.FINISH_LENGTH if ends else rounds_pb2.FINISH_UNSPECIFIED
                yield rounds_pb2.RunResponse(tokens=[token, token + 1], finish=finish)
            if self.after_the_last:
                self.after_the_last = False
                await self.death(self, context)
        except Silent:
            pass
        finally:
            self.load -= 1

    async def Attend(
        self, requests: AsyncIterator[rounds_pb2.AttendRequest], context: Context
    ) -> AsyncIterator[rounds_pb2.AttendResponse]:
        while not self.hung:
            yield rounds_pb2.AttendResponse()
            await asyncio.sleep(heartbeat.SECONDS)
        await asyncio.Event().wait()

    async def start(self) -> str:
        """Serve on a free port."""
        self.server = aio.server(interceptors=(KeyInterceptor(KEY), ErrorInterceptor()))
        rounds_pb2_grpc.add_RoundWorkerServiceServicer_to_server(self, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        return f"127.0.0.1:{port}"

    async def end(self) -> None:
        """Serve no more. A server is stopped once: gRPC crashes when two calls of `stop` meet."""
        server, self.server = self.server, None
        if server is not None:
            await server.stop(0)


class Cell:
    """A supervisor: asked where a worker is, it starts it anew on another port."""

    def __init__(self, *workers: Worker) -> None:
        self.access, self.count, self.reserve = Access(KEY), len(workers), None
        self.workers = workers
        self.starts = 0
        self.resumes = 0
        self.outdated: list[str] = []

    def resumed(self) -> None:
        """The pool moved a request."""
        self.resumes += 1

    async def endpoint(self, index: int) -> str:
        """Where worker `index` serves; for a while perhaps where it served before it died."""
        if self.outdated:
            return self.outdated.pop()
        self.starts += 1
        worker = self.workers[index]
        await worker.end()
        return await worker.start()

    def restart(self, index: int) -> None:
        """A worker has no endpoint."""


@asynccontextmanager
async def pooled(*workers: Worker) -> AsyncIterator[tuple[WorkerPool, Cell]]:
    """A pool of workers; nothing is left of it."""
    cell = Cell(*workers)
    try:
        with patient():
            async with WorkerPool(cell, Membership(), cell.resumed) as pool:
                await until(lambda: pool.connected == len(workers))
                yield pool, cell
    finally:
        for worker in workers:
            await worker.end()


async def collect(pool: WorkerPool) -> list[int]:
    """All tokens of one request."""
    return [token async for step in pool.run(REQUEST) for token in step.tokens]
