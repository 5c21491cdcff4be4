"""The worker pool over real gRPC: a lost worker costs a resume, never a token, and never an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from orchestrator.pool import MOST_LOSSES, WorkerPool
from orchestrator.worker import CELL_KEY, CellGuard
from protos import rpc
from protos.errors import Internal, InvalidRequest, TandemError, Unavailable
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.tandem.v1 import rounds_pb2, rounds_pb2_grpc

KEY, COUNT = "key of the cell", 12
Context = aio.ServicerContext[Any, Any]
Death = Callable[["Worker", Context], Any]


async def abort(worker: Worker, context: Context) -> None:
    """The connection breaks: a status that nobody authored."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")


async def stop(worker: Worker, context: Context) -> None:
    """The process is killed and its port is gone."""
    assert worker.server is not None
    asyncio.get_running_loop().create_task(worker.server.stop(0))
    await asyncio.sleep(60)


class Worker(rounds_pb2_grpc.RoundWorkerServiceServicer):
    """Counts up from the completion, two tokens a round; dies in front of each token in `deaths`, once."""

    def __init__(self, deaths: list[int], death: Death = abort, last: bool = False) -> None:
        self.deaths, self.death, self.after_the_last = deaths, death, last
        self.asked: list[list[int]] = []
        self.load, self.most = 0, 0
        self.server: aio.Server | None = None

    async def Run(self, request: rounds_pb2.RunRequest, context: Context) -> AsyncIterator[rounds_pb2.RunResponse]:
        self.asked.append(list(request.completion))
        self.load += 1
        self.most = max(self.most, self.load)
        try:
            for token in range(len(request.completion), COUNT, 2):
                await asyncio.sleep(0.001)
                if token in self.deaths:
                    self.deaths.remove(token)
                    await self.death(self, context)
                ends = token + 2 == COUNT
                reason = api.FINISH_REASON_LENGTH if ends else api.FINISH_REASON_UNSPECIFIED
                yield rounds_pb2.RunResponse(tokens=[token, token + 1], finish_reason=reason)
            if self.after_the_last:
                self.after_the_last = False
                await self.death(self, context)
        finally:
            self.load -= 1

    async def start(self) -> str:
        """Serve on a free port."""
        self.server = aio.server(interceptors=(CellGuard(KEY), rpc.Boundary()))
        rounds_pb2_grpc.add_RoundWorkerServiceServicer_to_server(self, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        return f"127.0.0.1:{port}"


class Cell:
    """A supervisor: asked where a worker is, it starts it anew on another port."""

    def __init__(self, *workers: Worker) -> None:
        self.key, self.count = KEY, len(workers)
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
        if worker.server is not None:
            await worker.server.stop(0)
        return await worker.start()


@asynccontextmanager
async def pooled(*workers: Worker) -> AsyncIterator[tuple[WorkerPool, Cell]]:
    """A pool of workers; nothing is left of it."""
    cell = Cell(*workers)
    try:
        async with WorkerPool(cell, cell.resumed) as pool:
            yield pool, cell
    finally:
        for worker in workers:
            if worker.server is not None:
                await worker.server.stop(0)


async def collect(pool: WorkerPool, seconds: float = 10.0) -> list[int]:
    """All tokens of one request."""
    tokens: list[int] = []

    async def read() -> None:
        async for step in pool.run(rounds_pb2.RunRequest(request_id="id", prompt=[1])):
            tokens.extend(step.tokens)

    await asyncio.wait_for(read(), seconds)
    return tokens


@pytest.mark.parametrize("death", [abort, stop])
@pytest.mark.parametrize("deaths", [[0], [4], [10], [2, 4, 4, 8]])
async def test_every_token_comes_exactly_once_whenever_workers_die(deaths: list[int], death: Death) -> None:
    worker = Worker(deaths.copy(), death)
    async with pooled(worker) as (pool, cell):
        assert await collect(pool) == list(range(COUNT))
        assert cell.resumes == len(deaths)
    assert worker.asked == [list(range(start)) for start in (0, *deaths)]
    assert cell.starts == 1 + len(deaths)


async def test_a_lost_stream_goes_on_at_another_worker_at_once() -> None:
    first, second = Worker([6]), Worker([])
    async with pooled(first, second) as (pool, _):
        assert await collect(pool) == list(range(COUNT))
    assert first.asked == [[]]
    assert second.asked == [list(range(6))]


async def test_many_requests_survive_a_worker_that_dies_and_share_what_is_left() -> None:
    workers = Worker([4, 8], stop), Worker([])
    async with pooled(*workers) as (pool, cell):
        texts = await asyncio.gather(*(collect(pool) for _ in range(8)))
        assert texts == [list(range(COUNT))] * 8
    assert cell.starts <= 4, "one loss is mended once, however many requests notice it"


async def test_requests_go_to_the_worker_with_least_to_do() -> None:
    workers = Worker([]), Worker([]), Worker([])
    async with pooled(*workers) as (pool, _):
        await asyncio.gather(*(collect(pool) for _ in range(9)))
    assert [worker.most for worker in workers] == [3, 3, 3]
    assert [worker.load for worker in workers] == [0, 0, 0]


async def test_a_finished_request_weighs_no_more() -> None:
    workers = Worker([]), Worker([])
    async with pooled(*workers) as (pool, _):
        held = pool.run(rounds_pb2.RunRequest(prompt=[1]))
        await anext(held)
        for _ in range(3):
            await collect(pool)
        await held.aclose()  # type: ignore[attr-defined]
    assert [len(worker.asked) for worker in workers] == [1, 3]


@pytest.mark.parametrize("error", [InvalidRequest.of("prompt", "is bad"), Internal("a bug")])
async def test_an_error_that_a_worker_means_is_passed_on_and_not_tried_again(error: TandemError) -> None:
    async def refuse(worker: Worker, context: Context) -> None:
        raise error

    worker = Worker([2], refuse)
    async with pooled(worker) as (pool, cell):
        with pytest.raises(type(error), match=str(error)):
            await collect(pool)
        assert (len(worker.asked), cell.starts, cell.resumes) == (1, 1, 0)
        assert await collect(pool) == list(range(COUNT)), "the worker serves on"


async def test_a_request_that_kills_every_worker_fails_and_spares_the_pool() -> None:
    worker = Worker([2] * (MOST_LOSSES + 1))
    async with pooled(worker) as (pool, _):
        with pytest.raises(Unavailable, match="6 round workers"):
            await collect(pool)
        assert len(worker.asked) == MOST_LOSSES + 1
        assert await collect(pool) == list(range(COUNT))


async def test_a_request_that_kills_workers_does_not_hurt_its_neighbours() -> None:
    """They share a channel with it, and their tokens come all the same."""
    calm, deadly = Worker([]), Worker([2] * (MOST_LOSSES + 1))
    calm.deaths = deadly.deaths  # whoever comes to token 2 first dies; the others pass
    async with pooled(calm) as (pool, _):
        texts = await asyncio.gather(*(collect(pool) for _ in range(8)))
    assert texts == [list(range(COUNT))] * 8


async def test_progress_forgives_losses() -> None:
    deaths = [token for token in (2, 4, 6) for _ in range(MOST_LOSSES)]
    worker = Worker(deaths)
    async with pooled(worker) as (pool, cell):
        assert await collect(pool) == list(range(COUNT))
        assert cell.resumes == 3 * MOST_LOSSES


async def test_a_reader_that_leaves_frees_the_worker() -> None:
    worker = Worker([])
    async with pooled(worker) as (pool, _):
        steps = pool.run(rounds_pb2.RunRequest(prompt=[1]))
        await anext(steps)
        await steps.aclose()  # type: ignore[attr-defined]
        for _ in range(100):
            if worker.load == 0:
                break
            await asyncio.sleep(0.01)
        assert worker.load == 0


async def test_a_worker_that_dies_again_while_it_is_mended_is_asked_for_again() -> None:
    """The supervisor may not know yet: what it says is where the worker was."""
    worker = Worker([2], stop)
    async with pooled(worker) as (pool, cell):
        async with rpc.serving("127.0.0.1", 0, {}) as gone:
            cell.outdated.append(gone)
        assert await collect(pool, seconds=8.0) == list(range(COUNT))


async def test_a_worker_that_dies_after_the_last_token_is_not_asked_for_more() -> None:
    worker = Worker([], last=True)
    async with pooled(worker) as (pool, _):
        assert await collect(pool) == list(range(COUNT))
        assert worker.asked == [[]], "the generation had ended"


async def test_a_worker_serves_its_own_cell_only() -> None:
    worker = Worker([])
    address = await worker.start()
    async with rpc.connect(address) as channel:
        stub = rounds_pb2_grpc.RoundWorkerServiceStub(channel)
        for metadata in ((), ((CELL_KEY, "another"),)):
            with pytest.raises(aio.AioRpcError) as failure:
                await stub.Run(rounds_pb2.RunRequest(prompt=[1]), metadata=metadata, timeout=5).read()
            assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert worker.server is not None
    await worker.server.stop(0)
    assert worker.asked == []
