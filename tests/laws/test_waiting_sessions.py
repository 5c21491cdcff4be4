"""Real sessions on the model thread: whose call waits keeps its memory, however long the step."""

from __future__ import annotations

import asyncio
from itertools import count

from tandem.engine.cache.ranges import BLOCK
from tandem.engine.cache.sessions import IDLE_SECONDS, Sessions
from tandem.engine.schedule.scheduler import ModelThread
from tandem.protos.errors import Busy
from tandem.protos.streams import Fact
from tandem.protos.types import NO_DRAFT, Context, SamplingParams
from tests.laws.machine import LIMITS, SECONDS, Machine, queue, results, settle, steps
from tests.laws.replica import tiny_pool
from tests.laws.verifying import verify


async def test_a_newcomer_does_not_evict_a_session_whose_call_waits_behind_it() -> None:
    machine, pool = Machine(), tiny_pool(blocks=1)
    sessions = Sessions(pool, BLOCK, 9, count(1).__next__, 1e9, lambda: machine.now)

    def ask(thread: ModelThread, context: Context) -> asyncio.Task[object]:
        job = lambda: verify(sessions, context, NO_DRAFT, SamplingParams())  # noqa: E731
        return queue(thread, context.session_id, job)

    machine.open.set()
    report, expire = machine.reports.append, sessions.expire
    with ModelThread(machine.forward, machine.wait, LIMITS, report, expire) as thread:
        (opened,) = await results(ask(thread, Context(b"old", 1, 0, (1, 2))))
        assert isinstance(opened, Fact)
        machine.open.clear()
        machine.began.clear()
        step = queue(thread, b"step", lambda: steps(1))
        await asyncio.to_thread(machine.began.wait, SECONDS)
        newcomer = ask(thread, Context(b"new", 1, 0, (1,)))
        await settle()
        waiting = ask(thread, Context(b"old", 2, 2, (3,), opened.epoch))
        await settle()
        machine.now += 2 * IDLE_SECONDS
        machine.open.set()
        _, refused, served = await results(step, newcomer, waiting)
    assert isinstance(refused, Busy)
    assert isinstance(served, Fact) and served.start == 3
