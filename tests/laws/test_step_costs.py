"""The learned cost of a step counts all work of the model thread for it, and no waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace

import pytest

from tandem.engine.forward.segment import Segment
from tandem.engine.schedule import scheduler
from tandem.engine.schedule.task import Job
from tests.laws.machine import (
    Machine,
    queue,
    results,
    segment,
    steps,
)

# rows that may be added, the chance of each, and the seconds of a pass
ROWS, CHANCE, PASS = 4, 0.2, 0.01


@dataclass
class Proposing:
    """A session with rows that may be added. The job works a fixed time on each row before and
    after the pass, and in each step the thread waits for proposals.
    """

    machine: Machine
    before: float = 0.0
    after: float = 0.0
    wait: float = 0.0
    fed: list[int] = field(default_factory=list)  # number of rows in each step
    waited: bool = False

    def run(self, count: int) -> Job:
        """Run this many steps."""
        for _ in range(count):
            self.waited = False
            logits = yield self
            self.fed.append(len(logits) - 1)
            self.machine.now += self.after * self.fed[-1]

    def ready(self) -> Segment:
        """Return a segment of the newest token."""
        return segment(1)

    def chances(self) -> Iterator[float]:
        """Draw how many of the rows are fed: none to all of them, in turn."""
        return iter([CHANCE] * (len(self.fed) % (1 + ROWS)))

    def segment(self, rows: int) -> Segment:
        """Return a segment with this many of the rows."""
        self.machine.now += self.before * rows
        return segment(*range(1 + rows))

    def wait_seconds(self, now: float, step: float) -> float:
        """Wait once, for a moment that is longer by the machine's clock."""
        if self.waited or not self.wait:
            return 0.0
        self.machine.now += self.wait
        self.waited = True
        return 1e-6


async def predicted(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, sessions: Sequence[Proposing]
) -> float:
    """Return the predicted time of a step after some steps, on a machine whose passes take the same
    time for any number of rows.
    """
    machine.costs = (PASS, 0.0)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(perf_counter=machine.clock))
    machine.open.set()
    async with machine.running() as thread:
        for tokens in (1, 8, 1, 8):  # runs steps as a service does before it serves
            await results(queue(thread, b"warm-up", partial(steps, 1, tokens)))
        own = [
            queue(thread, bytes([number]), partial(session.run, 60))
            for number, session in enumerate(sessions)
        ]
        assert await results(*own) == [None] * len(own)
        return thread.costs.model.predict(scheduler.SINGLE_TOKEN)


@pytest.mark.parametrize(("before", "after"), [(1.0, 0.0), (0.0, 1.0)], ids=["before", "after"])
async def test_rows_that_do_not_pay_for_the_work_between_passes_are_fed_no_longer(
    monkeypatch: pytest.MonkeyPatch, before: float, after: float
) -> None:
    """The rows cost the thread's own time before or after the pass; the pass itself takes the same
    time.
    """
    for work, expected in ((PASS / 100, [*range(1 + ROWS)]), (PASS / 8, [0] * (1 + ROWS))):
        machine = Machine()
        each = Proposing(machine, before * work, after * work)
        sessions = [replace(each, fed=[]) for _ in range(4)]
        await predicted(monkeypatch, machine, sessions)
        for session in sessions:
            assert session.fed[: 1 + ROWS] == [*range(1 + ROWS)], "rows are tried"
            assert session.fed[-1 - ROWS :] == expected


async def test_what_a_session_is_waited_for_is_no_cost_of_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for wait in (0.0, PASS):
        machine = Machine()
        found.append(await predicted(monkeypatch, machine, [Proposing(machine, wait=wait)]))
        assert machine.now > 60 * (PASS + wait)
    assert found[1] == pytest.approx(found[0], rel=0.01)
