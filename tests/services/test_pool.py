"""The worker pool over real gRPC: a lost worker costs a resume, never a token or an error."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc import aio

from tandem.orchestrator.workers.pool import MAX_LOSSES, TURNS
from tandem.protos.errors import Internal, InvalidRequest, TandemError, Unavailable
from tandem.protos.transport import heartbeat, rpc
from tandem.protos.transport.key import WORKER_KEY
from tandem.v1 import rounds_pb2, rounds_pb2_grpc
from tests.services.cell import (
    COUNT,
    REQUEST,
    Context,
    Death,
    Worker,
    abort,
    collect,
    end_early,
    pooled,
    stop,
)


@pytest.mark.parametrize("death", [abort, stop])
@pytest.mark.parametrize("deaths", [[0], [4], [10], [2, 4, 4, 8]])
async def test_every_token_comes_exactly_once_whenever_workers_die(
    deaths: list[int], death: Death
) -> None:
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


async def test_a_stream_without_a_finish_reason_goes_on_at_another_worker() -> None:
    first, second = Worker([6], end_early), Worker([])
    async with pooled(first, second) as (pool, cell):
        assert await collect(pool) == list(range(COUNT))
        assert cell.resumes == 1
        assert pool.connected == 2, "only the stream was lost"
    assert sorted([*first.asked, *second.asked]) == [[], list(range(6))]


async def test_workers_that_never_finish_a_request_are_an_error() -> None:
    worker = Worker([2] * (MAX_LOSSES + 1), end_early)
    async with pooled(worker) as (pool, _):
        with pytest.raises(Unavailable, match="6 round workers"):
            await collect(pool)


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
    assert [len(worker.asked) for worker in workers] == [3, 3, 3]
    assert [worker.load for worker in workers] == [0, 0, 0]


async def test_a_finished_request_weighs_no_more() -> None:
    workers = Worker([]), Worker([])
    async with pooled(*workers) as (pool, _):
        held = pool.run(REQUEST)
        await anext(held)
        for _ in range(3):
            await collect(pool)
        await held.aclose()  # type: ignore[attr-defined]
    assert [len(worker.asked) for worker in workers] == [1, 3]


@pytest.mark.parametrize("error", [InvalidRequest.of("prompt", "is bad"), Internal("a bug")])
async def test_an_error_that_a_worker_means_is_passed_on_and_not_tried_again(
    error: TandemError,
) -> None:
    async def refuse(worker: Worker, context: Context) -> None:
        raise error

    worker = Worker([2], refuse)
    async with pooled(worker) as (pool, cell):
        with pytest.raises(type(error), match=str(error)):
            await collect(pool)
        assert (len(worker.asked), cell.starts, cell.resumes) == (1, 1, 0)
        assert await collect(pool) == list(range(COUNT)), "the worker serves on"


async def test_a_request_that_kills_every_worker_fails_and_spares_the_pool() -> None:
    worker = Worker([2] * (MAX_LOSSES + 1))
    async with pooled(worker) as (pool, _):
        with pytest.raises(Unavailable, match="6 round workers"):
            await collect(pool)
        assert len(worker.asked) == MAX_LOSSES + 1
        assert await collect(pool) == list(range(COUNT))


async def test_a_request_that_kills_workers_does_not_hurt_its_neighbours() -> None:
    """They share a channel with it, and their tokens come all the same."""
    calm, deadly = Worker([]), Worker([2] * (MAX_LOSSES + 1))
    calm.deaths = deadly.deaths  # whoever comes to token 2 first dies; the others pass
    async with pooled(calm) as (pool, _):
        texts = await asyncio.gather(*(collect(pool) for _ in range(8)))
    assert texts == [list(range(COUNT))] * 8


@pytest.mark.parametrize("neighbours", [0, 3])
async def test_a_worker_that_hangs_is_noticed_and_its_requests_go_on_elsewhere(
    neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections are fine, but it answers no more."""

    async def hang(worker: Worker, context: Context) -> None:
        worker.hung = True
        await asyncio.sleep(60)

    monkeypatch.setattr(heartbeat, "SECONDS", 0.02)
    first, second = Worker([4] * (neighbours + 1), hang), Worker([])
    async with pooled(first, second) as (pool, cell):
        texts = await asyncio.gather(*(collect(pool) for _ in range(2 * neighbours + 1)))
        assert texts == [list(range(COUNT))] * (2 * neighbours + 1)
        assert cell.resumes == neighbours + 1
        assert pool.connected == 1
        first.hung = False
        for _ in range(500):
            if pool.connected == 2:
                break
            await asyncio.sleep(0.01)
        assert pool.connected == 2, "it answers again"


async def test_the_worker_in_reserve_runs_requests_only_while_no_other_can() -> None:
    first, reserve = Worker([8], stop), Worker([])
    async with pooled(first, reserve) as (pool, cell):
        cell.reserve = 1
        await asyncio.gather(*(collect(pool) for _ in range(3)))
        assert len(first.asked) == 3
        assert reserve.asked
        assert all(reserve.asked), "they began at the first"


async def test_progress_forgives_losses() -> None:
    deaths = [token for token in (2, 4, 6) for _ in range(MAX_LOSSES)]
    worker = Worker(deaths)
    async with pooled(worker) as (pool, cell):
        assert await collect(pool) == list(range(COUNT))
        assert cell.resumes == 3 * MAX_LOSSES


async def test_a_reader_that_leaves_frees_the_worker() -> None:
    worker = Worker([])
    async with pooled(worker) as (pool, _):
        steps = pool.run(REQUEST)
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
        async with rpc.serving("127.0.0.1", 0, object()) as gone:
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
        for metadata in ((), ((WORKER_KEY, "another"),)):
            with pytest.raises(aio.AioRpcError) as failure:
                await stub.Run(
                    rounds_pb2.RunRequest(prompt=[1]), metadata=metadata, timeout=5
                ).read()
            assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await worker.end()
    assert worker.asked == []


async def test_a_resumed_request_has_higher_turns_than_the_worker_that_was_lost() -> None:
    worker = Worker([2, 4])
    async with pooled(worker) as (pool, _):
        await collect(pool)
    assert worker.turns == [0, TURNS, 2 * TURNS]
