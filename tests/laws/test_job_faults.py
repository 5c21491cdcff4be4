"""The model thread: what fails in a step fails there alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence

import pytest
import torch

from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.scheduler import ModelThread
from tandem.engine.schedule.task import Job
from tandem.protos.errors import Internal, InvalidRequest, Unavailable
from tests.laws.machine import (
    LIMITS,
    SECONDS,
    VOCABULARY,
    Machine,
    queue,
    results,
    segment,
    settle,
    steps,
)


def refuse_at(step: int, error: Exception) -> Callable[[], Job]:
    """A job that raises before its first step (0), or after some."""

    def job() -> Generator[Segment, torch.Tensor, None]:
        for _ in range(step):
            yield segment(1)
        raise error

    return job


@pytest.mark.parametrize("step", [0, 1, 2])
async def test_a_job_that_raises_does_not_hurt_its_neighbours(step: int) -> None:
    machine, error = Machine(), InvalidRequest.of("context.tokens", "are bad")
    async with machine.running() as thread:
        tasks = [
            queue(thread, b"good", lambda: steps(3)),
            queue(thread, b"bad", refuse_at(step, error)),
        ]
        await settle()
        machine.open.set()
        good, bad = await results(*tasks)
    assert bad is error
    assert good == [(1, VOCABULARY)] * 3


async def test_a_start_that_raises_or_has_no_job_is_answered() -> None:
    machine = Machine()

    def broken() -> Job:
        raise ValueError("broken")

    async with machine.running() as thread:
        tasks = [queue(thread, b"broken", broken), queue(thread, b"none", lambda: None)]
        machine.open.set()
        bad, nothing = await results(*tasks)
    assert isinstance(bad, ValueError)
    assert nothing is None


async def test_a_forward_that_raises_fails_the_jobs_of_that_step_alone() -> None:
    machine, closed = Machine(), list[str]()
    machine.fails_at = 2

    def rolls_back() -> Job:
        try:
            yield segment(1)
        finally:
            closed.append("rolled back")

    async with machine.running() as thread:
        doomed = [queue(thread, b"a", rolls_back), queue(thread, b"b", lambda: steps(2))]
        await settle()
        later = [queue(thread, b"a", lambda: steps(1)), queue(thread, b"b", lambda: steps(1))]
        await settle()
        machine.open.set()
        first, second = await results(*doomed)
        assert isinstance(first, Internal) and isinstance(second, Internal)
        assert "secret" not in str(first)
        assert closed == ["rolled back"]
        assert await results(*later) == [[(1, VOCABULARY)], [(1, VOCABULARY)]]


async def test_what_goes_wrong_while_a_job_is_ended_hurts_nobody_else() -> None:
    """A device that is lost fails the clean-up as well."""
    machine = Machine()
    machine.fails_at = 2

    def cannot_roll_back() -> Job:
        try:
            yield segment(1)
        finally:
            raise RuntimeError("out of memory near a secret")

    async with machine.running() as thread:
        doomed = [queue(thread, b"a", cannot_roll_back), queue(thread, b"b", lambda: steps(1))]
        await settle()
        later = queue(thread, b"b", lambda: steps(2))
        machine.open.set()
        assert all(isinstance(failed, Internal) for failed in await results(*doomed))
        assert await results(later) == [[(1, VOCABULARY)] * 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_who_calls_when_the_model_thread_has_died_is_told_so() -> None:
    machine = Machine()
    machine.open.set()

    def deadly(segments: Sequence[Segment]) -> list[torch.Tensor]:
        raise SystemExit

    with ModelThread(deadly, machine.wait, LIMITS, machine.reports.append, machine.rest) as thread:
        first = queue(thread, b"a", lambda: steps(1))
        done, _ = await asyncio.wait((first,), timeout=SECONDS)
        assert done and isinstance(first.exception(), Unavailable)
        with pytest.raises(Unavailable):
            await thread.run(b"b", lambda: steps(1))


async def test_a_step_that_breaks_half_way_leaves_the_answers_it_gave_and_the_thread_goes_on() -> (
    None
):
    """A job that is done has its answer and must not be failed as well."""
    machine = Machine()

    def short(segments: Sequence[Segment]) -> list[torch.Tensor]:
        return machine.forward(segments)[: 1 if len(segments) == 2 else None]

    with ModelThread(short, machine.wait, LIMITS, machine.reports.append, machine.rest) as thread:
        first = queue(thread, b"first", lambda: steps(1))
        await asyncio.to_thread(machine.began.wait, SECONDS)
        tasks = [queue(thread, b"a", lambda: steps(1)), queue(thread, b"b", lambda: steps(1))]
        await settle()
        machine.open.set()
        assert await results(first, tasks[0]) == [[(1, VOCABULARY)]] * 2
        done, pending = await asyncio.wait(
            (tasks[1], queue(thread, b"c", lambda: steps(1))), timeout=1.0
        )
        for left in pending:
            left.cancel()
        assert not pending, "the thread died"
        assert sorted(isinstance(call.exception(), Internal) for call in done) == [False, True]
