"""Prompts that do not fit into a step of the model thread: each job makes progress, and each token
is fed once, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import SimpleNamespace

import pytest
import torch

from tandem.drafter_service.tree.pending import WaitingInput
from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.session import JobEnded
from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import MIN_PROMPT_CHUNK
from tandem.engine.schedule.task import Job
from tandem.protos import tree
from tandem.protos.errors import Internal
from tests.laws.machine import (
    LIMITS,
    MOST,
    VOCABULARY,
    Machine,
    answers,
    queue,
    results,
    settle,
    steps,
)
from tests.laws.segments import straight
from tests.waiting import LIMIT

ONE = [(1, VOCABULARY)]


def prompt(table: PageTable, length: int, wanted: int = 1) -> Job:
    """Return a job that feeds many tokens at once and returns the shape of its logits."""
    logits = yield Segment(table, 0, tuple(range(length)), tree.chain(length), wanted)
    return tuple(logits.shape)


def check_fed(chunks: list[Segment], length: int, wanted: int = 1) -> None:
    """Check that chunks make up a prompt, in order, and that only the last one asks for logits."""
    assert sum((chunk.tokens for chunk in chunks), ()) == tuple(range(length))
    fed = [len(chunk.tokens) for chunk in chunks]
    assert [chunk.context for chunk in chunks] == [sum(fed[:step]) for step in range(len(fed))]
    assert [chunk.num_logits for chunk in chunks] == [0] * (len(chunks) - 1) + [wanted]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which a step takes as long as two tokens, and nothing else takes time."""
    machine = Machine()
    machine.costs = (2e-5, 1e-5)
    monkeypatch.setattr(
        "tandem.engine.schedule.scheduler.time", SimpleNamespace(perf_counter=machine.clock)
    )
    return machine


def arriving(machine: Machine, come: Callable[[int], bool], start: Callable[[], object]) -> None:
    """Start a job from outside in the middle of the chosen steps."""
    loop = asyncio.get_running_loop()

    async def arrive() -> None:
        start()
        await settle()

    def between() -> None:
        if come(len(machine.batches)):
            asyncio.run_coroutine_threadsafe(arrive(), loop).result(LIMIT)

    machine.between = between


@pytest.mark.parametrize("wanted", [1, 70])
async def test_a_long_prompt_and_sessions_that_decode_share_steps(
    machine: Machine, wanted: int
) -> None:
    table = straight(0, 1024)
    async with machine.running() as thread:
        long = queue(thread, b"long", lambda: prompt(table, 1000, wanted))
        short = [queue(thread, bytes([i]), lambda: steps(6, tokens=2)) for i in range(3)]
        assert (
            await answers(machine, long, *short)
            == [(wanted, VOCABULARY)] + [[(2, VOCABULARY)] * 6] * 3
        )
    check_fed(machine.fed(table), 1000, wanted)
    assert machine.sizes[:7] == [1] + [4] * 6, "nobody missed a step"
    tokens = [sum(len(chunk.tokens) for chunk in batch) for batch in machine.batches]
    assert max(tokens) <= LIMITS.tokens
    assert [report.tokens for report in machine.reports] == tokens
    assert [report.sessions for report in machine.reports] == machine.sizes
    assert all(0 <= report.cost_error <= 1 for report in machine.reports)


async def test_a_prompt_whose_logits_are_all_wanted_is_read_as_others_are(machine: Machine) -> None:
    """The job continues after each chunk, and sessions that decode miss no step."""
    table, rows = straight(0, 1024), list[int]()

    def telling() -> Job:
        while (start := sum(rows)) < 200:
            tokens = tuple(range(start, 200))
            chain = tree.chain(len(tokens))
            logits = yield Segment(table, start, tokens, chain, len(tokens), divisible=True)
            rows.append(len(logits))

    async with machine.running() as thread:
        long = queue(thread, b"long", telling)
        short = queue(thread, b"s", lambda: steps(6))
        assert await answers(machine, long, short) == [None, ONE * 6]
    fed = machine.fed(table)
    assert rows == [len(chunk.tokens) for chunk in fed] == [chunk.num_logits for chunk in fed]
    assert sum((chunk.tokens for chunk in fed), ()) == tuple(range(200)) and len(fed) > 1
    assert machine.sizes[:7] == [1] + [2] * 6, "nobody missed a step"


async def test_beside_a_session_that_decodes_a_dear_prompt_comes_in_least_pieces(
    machine: Machine,
) -> None:
    """A short chunk does not limit the length of the next one."""
    table, long = straight(0, 1024), list[asyncio.Task[object]]()
    async with machine.running() as thread:

        def begin() -> None:
            long.append(queue(thread, b"long", lambda: prompt(table, 400)))

        arriving(machine, lambda step: step == 20, begin)  # the cost is known by then
        short = queue(thread, b"short", lambda: steps(60))
        await answers(machine, short)
        await results(*long)
    check_fed(machine.fed(table), 400)
    beside = [batch for batch in machine.batches if len(batch) == 2]
    sizes = [sum(len(chunk.tokens) for chunk in batch) - 1 for batch in beside]
    assert max(sizes[3:-1]) <= MIN_PROMPT_CHUNK


async def test_with_nobody_decoding_prompts_take_whole_steps(machine: Machine) -> None:
    """The remainder of a step that one prompt leaves to the next does not count as a decoding
    session.
    """
    one, other = straight(0, 2048), straight(2048, 2048)
    with machine.thread() as thread:
        length = MIN_PROMPT_CHUNK + 7 * LIMITS.tokens + 104  # no costs are known at first
        first = queue(thread, b"one", lambda: prompt(one, length))
        await asyncio.to_thread(machine.began.wait, LIMIT)
        second = queue(thread, b"other", lambda: prompt(other, 12 * LIMITS.tokens + 24))
        assert await answers(machine, first, second) == [(1, VOCABULARY)] * 2
    check_fed(machine.fed(one), length)
    check_fed(machine.fed(other), 12 * LIMITS.tokens + 24)
    sizes = [report.tokens for report in machine.reports]
    assert sizes == [MIN_PROMPT_CHUNK] + [LIMITS.tokens] * 20


async def test_a_job_that_pauses_while_its_prompt_is_read_is_fed_the_rest_and_harms_nobody() -> (
    None
):
    machine, table, paused = Machine(), straight(0, 1024), list[int]()
    machine.between = lambda: paused.extend(machine.sizes)  # called from the second step on
    whole = Segment(table, 0, tuple(range(300)), tree.chain(300), 1)

    def pausing() -> Job:
        logits = yield WaitingInput(lambda: None if paused else whole)
        return tuple(logits.shape)

    async with machine.running() as thread:
        long, short = queue(thread, b"long", pausing), queue(thread, b"s", lambda: steps(3))
        assert await answers(machine, long, short) == [(1, VOCABULARY), ONE * 3]
    check_fed(machine.fed(table), 300)
    assert len(machine.fed(table)) > 1


async def test_a_step_that_fails_in_the_middle_of_a_prompt_fails_it_once() -> None:
    machine, table, closed = Machine(), straight(0, 1024), list[str]()
    machine.fails_at = 4

    def rolls_back() -> Generator[Segment, torch.Tensor, object]:
        try:
            return (yield from prompt(table, 1000))
        finally:
            closed.append("rolled back")

    async with machine.running() as thread:
        long = queue(thread, b"long", rolls_back)
        await settle()
        later = queue(thread, b"long", lambda: steps(1))
        failed, good = await answers(machine, long, later)
    assert isinstance(failed, Internal)
    assert good == ONE
    assert closed == ["rolled back"]
    assert len(machine.fed(table)) == 3, "nothing of it is fed after that"


async def test_a_prompt_whose_caller_has_gone_ends_before_the_sessions_next_call() -> None:
    """Two jobs must not use a session at the same time. The tokens that were fed stay for the next
    call.
    """
    machine, table, ended = Machine(), straight(0, 1024), list[object]()

    def told() -> Generator[Segment, torch.Tensor, object]:
        try:
            return (yield from prompt(table, 1000))
        except JobEnded as end:
            ended.append(end.fed)
            raise

    async with machine.running() as thread:
        long = queue(thread, b"a", told)
        arriving(machine, lambda step: step == 2, long.cancel)
        (gone,) = await answers(machine, long)
        assert isinstance(gone, asyncio.CancelledError)
        await results(queue(thread, b"a", lambda: ended.append("next")))
    fed = sum(len(chunk.tokens) for chunk in machine.fed(table))
    assert ended == [fed, "next"]
    assert 0 < fed < 1000


async def test_newcomers_do_not_starve_a_job_of_many_steps() -> None:
    """With every step, as many new jobs come as the step can take."""
    machine, others = Machine(), list[asyncio.Task[object]]()
    async with machine.running() as thread:

        def newcomers() -> None:
            for _ in range(MOST):
                name = len(others).to_bytes(4, "big")
                others.append(queue(thread, name, lambda: steps(1)))

        victim = queue(thread, b"victim", lambda: steps(10, tokens=3))
        arriving(machine, lambda step: step < 60 and not victim.done(), newcomers)
        await answers(machine, victim)
        while left := [task for task in others if not task.done()]:
            await results(*left)
    turns = [
        step
        for step, batch in enumerate(machine.batches)
        if any(len(chunk.tokens) == 3 for chunk in batch)
    ]
    assert len(turns) == 10 and turns[-1] < 60
