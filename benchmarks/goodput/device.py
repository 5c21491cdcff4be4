"""Simulate a model thread. The simulated thread composes steps and learns their costs as
`engine.schedule` does, but a forward pass computes nothing and only takes simulated time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count, islice
from typing import Any

from tandem.engine.cache.ledger import EVERYWHERE
from tandem.engine.cache.pages import PAGE, PageTable, page_aligned
from tandem.engine.cache.prefixes import Prefixes
from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import Batch, StepCosts, StepLimits, compose, load_of
from tandem.engine.schedule.cost import StepLoad
from tandem.engine.schedule.scheduler import SINGLE_TOKEN
from tandem.engine.schedule.task import Job, Task

INSTANT = 1e-9  # shorter waits are treated as zero
CONTEXT = 1 << 20


class Events:
    """A queue of simulated events, in the order of their time. `now` is the simulated time in
    seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Schedule an action, to run after `seconds` seconds of simulated time."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), action))

    def run(self, until: float) -> None:
        """Run all actions that are due at or before the time `until`."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()


class Nothing:
    """Replaces `engine.cache.kv_cache.KVCache` in simulations: it has room for any number of keys
    and stores none of them.
    """

    page = PAGE
    positions = size = free = 1 << 40
    allocated = 0
    footprint = EVERYWHERE
    prefixes = Prefixes()

    def parts(self, table: PageTable) -> Iterable[tuple[int, int, int]]:
        """Return an empty tuple, because page tables use no memory in this simulated cache."""
        return ()

    def price(self, table: PageTable, length: int, narrow: bool = False) -> int:
        """Return how many positions must be added to a page table so that it has pages for `length`
        positions.
        """
        return page_aligned(length) - table.capacity

    def trim(self, table: PageTable, length: int) -> None:
        """Do nothing, because pages of this simulated cache use no memory."""

    def allocate(self, length: int) -> PageTable | None:
        """Return a new table, because there is always enough memory."""
        table = PageTable()
        self.grow(table, length)
        return table

    def grow(self, table: PageTable, length: int, narrow: bool = False) -> bool:
        """Give a table pages for `length` positions. There is always enough memory."""
        table.pages += [0] * ((page_aligned(length) - table.capacity) // PAGE)
        return True

    def release(self, table: PageTable, start: int = 0) -> None:
        """Do nothing, because no memory was allocated."""

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Do nothing, because there are no keys to copy."""

    def compact(self, table: PageTable, start: int, path: Sequence[int]) -> None:
        """Do nothing, because there are no keys to move."""

    def finite(self, table: PageTable, start: int, stop: int) -> bool:
        """Return true, because simulated keys and values cannot overflow."""
        return True


class NoLogits:
    """Replaces the logits of a forward pass in simulations."""

    def numel(self) -> int:
        """Return 0, because there are no logits to check for NaN."""
        return 0


class Device:
    """The model thread of one service. `seconds` returns the duration of a step, and `flush` sends
    the messages that jobs have emitted. If `fixed` is given, a step verifies the `fixed` likeliest
    draft nodes of each session regardless of their cost, and does not wait for more nodes.
    """

    def __init__(
        self,
        events: Events,
        seconds: Callable[[StepLoad], float],
        flush: Callable[[], None],
        fixed: int | None = None,
    ) -> None:
        self._events = events
        self._seconds = seconds
        self._flush = flush
        self._fixed = fixed
        self.sessions = Sessions(Nothing(), CONTEXT, 1 << 10, lambda: 1, 1e9, lambda: events.now)
        self.before_jobs: Callable[[Sequence[Task]], None] = lambda tasks: None
        self.costs = StepCosts()
        self.price = 0.0
        self._limits = StepLimits()
        self._running: list[Task] = []
        self._steps = 0
        self._busy = False
        self._until = 0.0

    def start(self, owner: bytes, job: Job) -> Task:
        """Start a job, and return its task."""
        task = Task(owner, lambda: job, Future(), self._events.now, last_step=self._steps)
        task.begin()
        self._running.append(task)
        self.wake()
        return task

    def end(self, task: Task) -> None:
        """End a job before it has finished."""
        if task.step_input:
            task.end(RuntimeError("the request has ended"))
            task.step_input = None

    def wake(self) -> None:
        """Run a step if a job has something to feed and no other step is running."""
        if self._busy:
            return
        ready = self._ready()
        if len(ready) == 1 and not ready[0][0].remainder and (wait := self._wait(ready[0][0])):
            self._events.after(wait, self.wake)
        else:
            self._until = 0.0
            if ready:
                self._step(ready)
        self._flush()

    def _ready(self) -> list[tuple[Task, Segment]]:
        order = sorted(self._running, key=lambda task: task.last_step)
        ready = [(task, segment) for task in order if (segment := task.ready())]
        self._running = [task for task in order if task.step_input]
        for task in order:
            if task.answer.done() and (error := task.answer.exception()):
                assert isinstance(error, RuntimeError) and task.step_input is None, error
        return ready

    def _wait(self, task: Task) -> float:
        """Return how many seconds a step that contains only this task should wait for more rows."""
        now, step = self._events.now, self.costs.model.predict(SINGLE_TOKEN)
        self._until = self._until or now + step
        assert task.step_input
        left = min(task.step_input.wait_seconds(now, step), self._until - now)
        return 0.0 if self._fixed is not None or left < INSTANT else left

    def _chances(self, tasks: Sequence[Task], index: int) -> Iterator[float]:
        step_input = tasks[index].step_input
        if tasks[index].remainder or step_input is None:
            return iter(())
        if self._fixed is None:
            return step_input.chances()
        return islice((1.0 for _ in step_input.chances()), self._fixed)

    def _step(self, ready: Sequence[tuple[Task, Segment]]) -> None:
        tasks = [task for task, _ in ready]
        segments = [segment for _, segment in ready]
        decode_seconds = self.costs.decode_seconds.at(self._events.now)
        chances = partial(self._chances, tasks)
        batch = compose(segments, chances, self.costs.model, self._limits, decode_seconds)
        self.price = 0.0 if self._fixed is not None else batch.price
        stepping = [tasks[allocation.index] for allocation in batch.allocations]
        completed = [segments[each.index] is each.chunk for each in batch.allocations]
        for task, allocation in zip(stepping, batch.allocations, strict=True):
            if allocation.rows and task.step_input:
                allocation.chunk = task.step_input.segment(allocation.rows)
        load = sum((load_of(allocation.chunk) for allocation in batch.allocations), StepLoad())
        seconds, self._busy = self._seconds(load), True
        self._events.after(seconds, partial(self._done, stepping, completed, batch, load, seconds))

    def _done(
        self,
        stepping: Sequence[Task],
        completed: Sequence[bool],
        batch: Batch,
        load: StepLoad,
        seconds: float,
    ) -> None:
        self._busy, self._steps = False, self._steps + 1
        self.costs.learn(batch, load, seconds, self._events.now)
        self.before_jobs(stepping)
        logits: Any = NoLogits()
        for task, allocation, complete in zip(stepping, batch.allocations, completed, strict=True):
            task.last_step = self._steps
            if task.step_input:
                task.advance(allocation.chunk, logits, bool(allocation.rows) or complete)
        self._running = [task for task in self._running if task.step_input]
        self._flush()
        self.wake()
