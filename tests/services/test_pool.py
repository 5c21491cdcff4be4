"""The worker pool over real gRPC: a lost worker costs a resume, never a token or an error."""

from __future__ import annotations

import asyncio

import pytest

from tandem.orchestrator.workers.pool import MAX_LOSSES, TURNS
from tandem.protos.errors import Internal, InvalidRequest, TandemError, Unavailable
from tandem.protos.transport import heartbeat, rpc
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
from tests.services.peer import HASTY, PATIENT
from tests.waiting import until

WHOLE = list(range(COUNT))


@pytest.mark.parametrize("death", [abort, stop])
@pytest.mark.parametrize("deaths", [[0], [10], [2, 4, 4, 8]])
async def test_every_token_comes_exactly_once_whenever_workers_die(
    deaths: list[int], death: Death
) -> None:
    worker = Worker(deaths.copy(), death)
    async with pooled(worker) as (pool, cell):
        assert await collect(pool) == WHOLE
        assert cell.resumes == len(deaths)
    assert worker.asked == [list(range(start)) for start in (0, *deaths)]
    assert worker.turns == [n * TURNS for n in range(len(deaths) + 1)], "later ones are higher"
    assert cell.starts == 1 + len(deaths)


@pytest.mark.parametrize("death", [abort, end_early])
async def test_a_lost_stream_goes_on_at_a_worker_that_answers(death: Death) -> None:
    first, second = Worker([6], death), Worker([])
    async with pooled(first, second) as (pool, cell):
        assert await collect(pool) == WHOLE
        assert cell.resumes == 1
        assert pool.connected == 2 or death is abort, "the stream was lost, and no worker"
    assert sorted([*first.asked, *second.asked]) == [[], list(range(6))]
    assert second.asked or death is end_early


@pytest.mark.parametrize("death", [abort, end_early])
async def test_a_request_that_no_worker_finishes_fails_and_spares_the_pool(death: Death) -> None:
    worker = Worker([2] * (MAX_LOSSES + 1), death)
    async with pooled(worker) as (pool, _):
        with pytest.raises(Unavailable, match="6 round workers"):
            await collect(pool)
        assert len(worker.asked) == MAX_LOSSES + 1
        assert await collect(pool) == WHOLE


async def test_many_requests_survive_a_worker_that_dies_and_share_what_is_left() -> None:
    workers = Worker([4, 8], stop), Worker([])
    async with pooled(*workers) as (pool, cell):
        assert await asyncio.gather(*(collect(pool) for _ in range(8))) == [WHOLE] * 8
    assert cell.starts <= 4, "one loss is mended once, however many requests notice it"


async def test_requests_go_to_the_worker_with_least_to_do() -> None:
    workers = Worker([]), Worker([])
    async with pooled(*workers) as (pool, _):
        held = pool.run(REQUEST)
        await anext(held)
        for _ in range(3):
            await collect(pool)
        await held.aclose()  # type: ignore[attr-defined]
        assert [len(worker.asked) for worker in workers] == [1, 3], "what has ended weighs nothing"
        await until(lambda: workers[0].load == 0, "a reader that leaves frees its worker")
        await asyncio.gather(*(collect(pool) for _ in range(4)))
    assert [len(worker.asked) for worker in workers] == [3, 5]


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
        assert await collect(pool) == WHOLE, "the worker serves on"


async def test_a_worker_that_hangs_is_noticed_and_its_requests_go_on_elsewhere() -> None:
    """Its connections are fine, but it answers no more."""

    async def hang(worker: Worker, context: Context) -> None:
        worker.hung = True
        await asyncio.Event().wait()

    first, second = Worker([4] * 2, hang), Worker([])
    async with pooled(first, second) as (pool, cell):
        requests = asyncio.gather(*(collect(pool) for _ in range(3)))
        await until(lambda: not first.deaths)
        heartbeat.MISSED = HASTY
        await until(lambda: pool.connected == 1)
        heartbeat.MISSED = PATIENT
        assert await requests == [WHOLE] * 3
        assert cell.resumes == 2
        first.hung, heartbeat.MISSED = False, HASTY  # for the call that it left without an answer
        await until(lambda: pool.connected == 2, "it answers again")


async def test_the_worker_in_reserve_runs_requests_only_while_no_other_can() -> None:
    first, reserve = Worker([8], stop), Worker([])
    async with pooled(first, reserve) as (pool, cell):
        cell.reserve = 1
        await asyncio.gather(*(collect(pool) for _ in range(3)))
        assert len(first.asked) == 3
        assert reserve.asked
        assert all(reserve.asked), "they began at the first"


async def test_progress_forgives_losses() -> None:
    worker = Worker([token for token in (2, 4, 6) for _ in range(MAX_LOSSES)])
    async with pooled(worker) as (pool, _):
        assert await collect(pool) == WHOLE


async def test_a_worker_that_dies_again_while_it_is_mended_is_asked_for_again() -> None:
    """The supervisor may not know yet: what it says is where the worker was."""
    worker = Worker([2], stop)
    async with pooled(worker) as (pool, cell):
        async with rpc.serving("127.0.0.1", 0, object()) as gone:
            cell.outdated.append(gone)
        assert await collect(pool) == WHOLE


async def test_a_worker_that_dies_after_the_last_token_is_not_asked_for_more() -> None:
    worker = Worker([], last=True)
    async with pooled(worker) as (pool, _):
        assert await collect(pool) == WHOLE
        assert worker.asked == [[]], "the generation had ended"
