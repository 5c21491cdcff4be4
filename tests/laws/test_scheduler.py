"""Jobs of the model thread share steps, and no job waits for ever."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.cache.pages import PageTable
from tandem.engine.schedule import scheduler
from tandem.engine.schedule.task import Job, Task, startable
from tandem.protos.errors import Busy, TandemError
from tests.laws.machine import (
    MOST,
    VOCABULARY,
    Machine,
    queue,
    results,
    segment,
    settle,
    steps,
)
from tests.waiting import LIMIT


def task(owner: bytes) -> Task:
    """Return a task that was never started."""
    return Task(owner, lambda: None, Future(), 0.0)


owners = st.lists(st.sampled_from((b"a", b"b", b"c", b"d")).map(task), max_size=8)


@given(owners, owners)
def test_who_may_start_does_in_order_and_one_per_session(
    waiting: list[Task], running: list[Task]
) -> None:
    chosen = startable(waiting, running)
    assert [t for t in waiting if t in chosen] == chosen
    at_work = {t.owner for t in running}
    assert len({t.owner for t in chosen}) == len(chosen)
    assert {t.owner for t in chosen} == {t.owner for t in waiting} - at_work, (
        "nobody waits needlessly"
    )
    for t in chosen:
        assert next(w for w in waiting if w.owner == t.owner) is t, (
            "a session's calls stay in order"
        )


async def test_jobs_that_wait_together_share_steps_until_each_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    machine.costs = (100.0, 0.0)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(perf_counter=machine.clock))
    async with machine.running() as thread:
        tasks = [queue(thread, bytes([i]), partial(steps, 1 + i, tokens=3)) for i in range(3)]
        await settle()
        machine.open.set()
        assert await results(*tasks) == [[(3, VOCABULARY)] * (1 + i) for i in range(3)]
    found = [(each.sessions, each.tokens) for each in machine.reports]
    assert found == [(1, 1), (3, 9), (2, 6), (1, 3)]
    queued = [len(each.queue_seconds) for each in machine.reports]
    assert queued == [1, 3, 0, 0], "a job queues once"


async def test_calls_of_one_session_never_share_a_step_and_stay_in_order() -> None:
    machine, order = Machine(), list[int]()

    def numbered(number: int) -> Job:
        order.append(number)
        yield segment(1)

    async with machine.running() as thread:
        tasks = [queue(thread, b"same", partial(numbered, number)) for number in range(4)]
        await settle()
        machine.open.set()
        await results(*tasks)
    assert machine.sizes == [1] * 5
    assert order == [0, 1, 2, 3]


async def test_who_was_left_out_of_a_step_is_in_the_next() -> None:
    """Jobs that do not all fit into a step take turns: none stays a step ahead of another for
    long.
    """
    machine, tables = Machine(), [PageTable() for _ in range(MOST + 3)]
    async with machine.running() as thread:
        tasks = [
            queue(thread, bytes([place]), lambda table=table: steps(8, table=table))  # type: ignore[misc]
            for place, table in enumerate(tables)
        ]
        await settle()
        machine.open.set()
        await results(*tasks)
    turns = dict.fromkeys(map(id, tables), 0)
    assert machine.sizes[1:] == [MOST] * (MOST + 3)
    for batch in machine.batches[1:]:
        for chunk in batch:
            turns[id(chunk.table)] += 1
        assert max(turns.values()) - min(turns.values()) <= 1


async def test_a_waiting_job_that_is_cancelled_never_starts() -> None:
    machine, started = Machine(), list[bool]()

    def job() -> Job:
        started.append(True)
        return steps(1)

    async with machine.running() as thread:
        cancelled, kept = queue(thread, b"a", job), queue(thread, b"b", lambda: steps(1))
        await settle()
        cancelled.cancel()
        await settle()
        machine.open.set()
        outcome, good = await results(cancelled, kept)
    assert isinstance(outcome, asyncio.CancelledError)
    assert good == [(1, VOCABULARY)]
    assert started == []


async def test_a_full_queue_is_busy_at_once() -> None:
    machine = Machine()
    async with machine.running(queue_limit=2) as thread:
        tasks = [queue(thread, bytes([i]), lambda: steps(1)) for i in range(2)]
        await settle()
        (refused,) = await results(queue(thread, b"c", lambda: steps(1)))
        assert isinstance(refused, Busy) and "2 calls are waiting" in str(refused)
        machine.open.set()
        assert await results(*tasks) == [[(1, VOCABULARY)]] * 2


async def test_the_idle_call_is_made_between_all_steps_and_by_the_model_thread_alone() -> None:
    """A thread that is never idle must not keep what has expired, nor lose what is wanted."""
    machine = Machine()
    async with machine.running() as thread:
        tasks = [queue(thread, b"a", lambda: steps(5))]
        machine.open.set()
        await results(*tasks)
    assert len(machine.idle) >= len(machine.sizes) == 6
    assert set(machine.idle) == {"model"}
    assert [b"a"] in machine.wanted


async def test_nobody_waits_for_ever_when_the_scope_ends() -> None:
    machine, before = Machine(), set(threading.enumerate())
    machine.open.set()

    def endless() -> Job:
        while True:
            yield segment(1)

    with machine.thread() as thread:
        (own,) = (each for each in set(threading.enumerate()) - before if each.name == "model")
        running, waiting = queue(thread, b"a", endless), queue(thread, b"a", endless)
        assert await asyncio.to_thread(machine.began.wait, LIMIT)
    assert not own.is_alive()
    late = queue(thread, b"a", endless)
    for outcome in await results(running, waiting, late):
        assert isinstance(outcome, TandemError)


async def test_what_frees_memory_is_done_even_if_its_caller_has_gone() -> None:
    machine, freed = Machine(), threading.Event()
    async with machine.running() as thread:
        busy = queue(thread, b"a", lambda: steps(2))
        await settle()
        closing = asyncio.create_task(thread.run(b"a", freed.set, closing=True))
        await settle()
        closing.cancel()
        await settle()  # the caller has gone before the job can start
        machine.open.set()
        await busy
        assert await asyncio.to_thread(freed.wait, LIMIT)


async def test_what_steps_take_is_known_per_step_row_and_token() -> None:
    machine = Machine()
    machine.open.set()
    async with machine.running() as thread:
        await results(queue(thread, b"a", lambda: steps(30, tokens=4)))
        rates = thread.costs.averages
    assert 0.0 < rates.row < rates.token <= rates.step
