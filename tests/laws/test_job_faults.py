"""A failure in a step of the model thread fails only the jobs of that step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from itertools import count

import pytest
import torch

from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import StepLimits
from tandem.engine.schedule.progress import FAILED_STEPS
from tandem.engine.schedule.scheduler import ForwardPass, ModelThread
from tandem.engine.schedule.task import Job
from tandem.protos.errors import Internal, InvalidRequest, Unavailable
from tests.laws.machine import (
    LIMITS,
    VOCABULARY,
    Machine,
    answers,
    queue,
    results,
    segment,
    settle,
    steps,
)
from tests.waiting import LIMIT, until


def raising(step: int | None, error: Exception) -> Callable[[], Job]:
    """Return a job that raises before its first step (0) or after some steps; with None, starting
    it raises.
    """

    def job() -> Generator[Segment, torch.Tensor, None]:
        for _ in range(step or 0):
            yield segment(1)
        raise error

    def start() -> Job:
        raise error

    return start if step is None else job


@pytest.mark.parametrize("step", [None, 0, 1, 2])
async def test_a_job_that_raises_does_not_hurt_its_neighbours(step: int | None) -> None:
    machine, error = Machine(), InvalidRequest.of("context.tokens", "are bad")
    async with machine.running() as thread:
        tasks = [
            queue(thread, b"good", lambda: steps(3)),
            queue(thread, b"bad", raising(step, error)),
            queue(thread, b"none", lambda: None),
        ]
        assert await answers(machine, *tasks) == [[(1, VOCABULARY)] * 3, error, None]


@pytest.mark.parametrize("cleans_up", [True, False])
async def test_a_forward_that_raises_fails_the_jobs_of_that_step_alone(cleans_up: bool) -> None:
    """If the device is lost, the clean-up fails as well."""
    machine, closed = Machine(), list[str]()
    machine.fails_at = 2

    def rolls_back() -> Job:
        try:
            yield segment(1)
        finally:
            closed.append("rolled back")
            if not cleans_up:
                raise RuntimeError("out of memory near a secret")

    async with machine.running(limits=StepLimits(sessions=2)) as thread:
        doomed = [queue(thread, b"a", rolls_back), queue(thread, b"b", lambda: steps(2))]
        left_out = queue(thread, b"c", lambda: steps(1))
        await settle()
        later = [queue(thread, b"a", lambda: steps(1)), queue(thread, b"b", lambda: steps(1))]
        first, second = await answers(machine, *doomed)
        assert isinstance(first, Internal) and isinstance(second, Internal)
        assert "secret" not in str(first)
        assert closed == ["rolled back"]
        assert await results(left_out, *later) == [[(1, VOCABULARY)]] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_who_calls_when_the_model_thread_has_died_is_told_so() -> None:
    machine = Machine()
    machine.open.set()

    def deadly(segments: Sequence[Segment]) -> list[torch.Tensor]:
        raise SystemExit

    with ModelThread(deadly, machine.wait, LIMITS, machine.reports.append, machine.rest) as thread:
        first = queue(thread, b"a", lambda: steps(1))
        (failed,) = await results(first)
        assert isinstance(failed, Unavailable)
        with pytest.raises(Unavailable):
            await thread.run(b"b", lambda: steps(1))


def failing(machine: Machine, right: set[int]) -> ForwardPass:
    """Make a device on which only the passes with these numbers succeed, counted from 1."""
    passes = count(1)

    def forward(segments: Sequence[Segment]) -> list[torch.Tensor]:
        if next(passes) not in right:
            raise RuntimeError("CUDA error: an illegal memory access\nand more lines")
        return machine.forward(segments)

    return forward


async def test_a_device_that_fails_every_step_is_given_up_and_says_so() -> None:
    """The error may last as long as the process, so jobs are told to go elsewhere."""
    machine = Machine()
    machine.open.set()
    forward = failing(machine, set())
    with ModelThread(forward, machine.wait, LIMITS, machine.reports.append, machine.rest) as thread:
        for _ in range(FAILED_STEPS - 1):
            (failed,) = await results(queue(thread, b"a", lambda: steps(1)))
            assert isinstance(failed, Internal)
            assert (thread.problem(time.perf_counter()), thread.ended) == (None, False)
        (failed,) = await results(queue(thread, b"a", lambda: steps(1)))
        assert isinstance(failed, Unavailable) and "CUDA" not in str(failed)
        await until(lambda: thread.ended, "the thread gives up")
        problem = "5 steps in a row have failed, the last with RuntimeError: CUDA error: an illegal"
        assert str(thread.problem(time.perf_counter())) == f"{problem} memory access"
        with pytest.raises(Unavailable):
            await thread.run(b"b", lambda: steps(1))


async def test_steps_that_fail_now_and_then_are_no_reason_to_give_up() -> None:
    machine = Machine()
    machine.open.set()
    right = {FAILED_STEPS, 2 * FAILED_STEPS}
    forward = failing(machine, right)
    with ModelThread(forward, machine.wait, LIMITS, machine.reports.append, machine.rest) as thread:
        for number in range(1, 3 * FAILED_STEPS):
            (answer,) = await results(queue(thread, b"a", lambda: steps(1)))
            assert isinstance(answer, Internal) != (number in right)
        assert (thread.problem(time.perf_counter()), thread.ended) == (None, False)


async def test_a_step_that_breaks_half_way_leaves_the_answers_it_gave_and_the_thread_goes_on() -> (
    None
):
    """A job that is done has its answer and must not fail afterwards."""
    machine = Machine()

    def short(segments: Sequence[Segment]) -> list[torch.Tensor]:
        return machine.forward(segments)[: 1 if len(segments) == 2 else None]

    with ModelThread(short, machine.wait, LIMITS, machine.reports.append, machine.rest) as thread:
        first = queue(thread, b"first", lambda: steps(1))
        await asyncio.to_thread(machine.began.wait, LIMIT)
        tasks = [queue(thread, b"a", lambda: steps(1)), queue(thread, b"b", lambda: steps(1))]
        assert await answers(machine, first, tasks[0]) == [[(1, VOCABULARY)]] * 2
        broken, later = await results(tasks[1], queue(thread, b"c", lambda: steps(1)))
        assert isinstance(broken, Internal)
        assert later == [(1, VOCABULARY)]
