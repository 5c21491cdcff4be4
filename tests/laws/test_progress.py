"""When the model thread is taken for stalled, and for dead."""

from __future__ import annotations

import asyncio
import time

import pytest

from tandem.engine.schedule.progress import (
    STALL_FACTOR,
    STALL_SECONDS,
    UNKNOWN_SECONDS,
    Progress,
)
from tests.laws.machine import Machine, queue, results, steps


@pytest.mark.parametrize("predicted", [0.0, 0.01, 1.0, 60.0])
def test_a_long_but_predicted_pass_is_no_stall(predicted: float) -> None:
    allowed = max(STALL_SECONDS, STALL_FACTOR * predicted)
    progress = Progress(100.0, predicted)
    assert progress.problem(100.0 + 0.999 * allowed) is None
    assert "one step" in str(progress.problem(100.0 + 1.001 * allowed))


async def test_a_pass_of_which_nothing_is_known_may_take_long() -> None:
    machine = Machine()
    async with machine.running() as thread:
        assert thread.problem(time.perf_counter() + 2 * STALL_SECONDS) is None
        assert thread.problem(time.perf_counter() + STALL_FACTOR * UNKNOWN_SECONDS) is not None


async def test_a_thread_that_has_nothing_to_do_or_goes_on_has_no_problem() -> None:
    machine = Machine()
    machine.open.set()
    with machine.thread() as thread:
        await asyncio.sleep(2 * STALL_SECONDS / 3)
        assert thread.problem(time.perf_counter()) is None
        await results(queue(thread, b"one", lambda: steps(3)))
        assert thread.problem(time.perf_counter()) is None
        assert thread.problem(time.perf_counter() + 2 * STALL_SECONDS) is not None


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
        thread._thread.join()
        assert thread.problem(time.perf_counter()) == "the model thread ended"
