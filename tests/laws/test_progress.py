"""When the model thread counts as stalled, and when as dead."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from tandem.engine.schedule import scheduler
from tandem.engine.schedule.progress import (
    STALL_FACTOR,
    STALL_SECONDS,
    UNKNOWN_SECONDS,
    Progress,
)
from tandem.engine.schedule.scheduler import ModelThread
from tandem.protos.streams import PassTimes
from tests.laws.machine import Machine, queue, results, steps
from tests.waiting import LIMIT, until

SLOW = 0.05  # seconds


@pytest.mark.parametrize("predicted", [0.0, 0.01, 1.0, 60.0])
def test_a_long_but_predicted_pass_is_no_stall(predicted: float) -> None:
    allowed = max(STALL_SECONDS, STALL_FACTOR * predicted)
    progress = Progress(100.0, predicted)
    assert progress.problem(100.0 + 0.999 * allowed) is None
    assert "one step" in str(progress.problem(100.0 + 1.001 * allowed))


def assert_in_a_pass(thread: ModelThread) -> None:
    """Check that the thread is in a pass of unknown cost, which may take long and is reported."""
    began = thread.progress.since
    assert thread.problem(began + 2 * STALL_SECONDS) is None
    assert thread.problem(began + 1.01 * STALL_FACTOR * UNKNOWN_SECONDS) is not None
    assert thread.progress.passes(began + 2.0).newest == pytest.approx(2.0)


async def test_a_pass_of_which_nothing_is_known_may_take_long() -> None:
    async with Machine().running() as thread:
        assert_in_a_pass(thread)


async def test_a_thread_that_has_nothing_to_do_or_goes_on_has_no_problem() -> None:
    machine = Machine()
    machine.open.set()
    with machine.thread() as thread:
        late = thread.progress.since + 1.1 * STALL_SECONDS
        assert thread.progress.passes(late) == PassTimes()
        await until(lambda: thread.problem(late) is None, "the idle thread goes on")
        before = thread.progress.since
        await results(queue(thread, b"one", lambda: steps(3)))
        assert thread.progress.since > before
        assert thread.problem(thread.progress.since + 2 * STALL_SECONDS) is not None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_dead_thread_is_a_problem() -> None:
    machine = Machine()
    machine.open.set()

    def die() -> None:
        raise SystemExit

    machine.between = die
    with machine.thread() as thread:
        (answer,) = await results(queue(thread, b"one", lambda: steps(1)))
        assert "stopping" in str(answer)
        problem = await until(lambda: thread.problem(thread.progress.since), "the thread's end")
        assert problem == "the model thread ended"


def test_a_pass_counts_while_it_runs_and_after_it_until_there_is_no_work() -> None:
    began = Progress(100.0, predicted=0.4, single_token=0.1, before=PassTimes(0.5, 0.2))
    assert began.passes(100.1) == PassTimes(0.5, 0.2)
    assert began.passes(104.0) == PassTimes(4.0, 1.0), "ten times as long as was predicted"
    ended = began.resumed(104.0)
    assert ended.passes(109.0) == ended.resumed(105.0).passes(109.0) == PassTimes(4.0, 1.0)
    assert ended.rested(106.0).passes(109.0) == PassTimes(0.0, 0.1)
    assert began.resumed(100.2).passes(109.0) == PassTimes(100.2 - 100.0, 0.1)


async def test_what_follows_a_pass_is_a_part_of_its_step() -> None:
    """Sampling may take long, and on a GPU the thread waits for the pass there."""
    machine, held, leave = Machine(), threading.Event(), threading.Event()
    machine.open.set()

    def after_forward(_: object) -> None:
        held.set()
        leave.wait(LIMIT)

    with machine.thread() as thread:
        thread.after_forward = after_forward
        answer = queue(thread, b"one", lambda: steps(1))
        assert await asyncio.to_thread(held.wait, LIMIT)
        assert_in_a_pass(thread)
        leave.set()
        await results(answer)


async def test_a_step_takes_until_what_was_launched_and_drawn_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU, the measured time must not be that of the launch."""
    machine = Machine()
    machine.open.set()
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(perf_counter=machine.clock))

    def slowly(*_: object) -> None:
        machine.now += SLOW

    machine.wait = slowly
    with machine.thread() as thread:
        thread.after_forward = slowly
        await results(queue(thread, b"one", lambda: steps(3)))
    seconds = pytest.approx(2 * SLOW, abs=1e-3)
    assert [report.seconds for report in machine.reports] == [seconds] * 3
    assert thread.costs.averages.step == seconds
