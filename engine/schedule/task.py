"""The state of a job in the model thread.

A job is a generator: it yields a step input (a segment to feed, and rows that may be added to it),
receives the logits of what was fed, and in the end returns its answer. A long segment may be fed
over several steps. The job does not notice that its segment is fed over several steps, unless the
segment is divisible: then the job receives the logits of each chunk separately.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from tandem.engine.cache.session import JobEnded
from tandem.engine.forward.segment import Segment
from tandem.engine.forward.step_input import StepInput

Job = Generator[StepInput, torch.Tensor, Any]


@dataclass(slots=True, eq=False)
class Task:
    """A job of the session `owner`. `closing` tells whether the job closes the session. The caller
    of the job waits for `answer`.
    """

    owner: bytes
    start: Callable[[], Job | None]
    answer: Future[Any]
    arrived: float
    closing: bool = False
    cancelled: bool = False  # whether the task's caller no longer waits
    job: Job | None = None
    # the step input that the job yielded last; None if the job is done
    step_input: StepInput | None = None
    requested: Segment | None = None  # the segment that the step input asked for last
    remainder: Segment | None = None  # the rest of a long segment that was fed in part
    last_step: int = 0  # number of the newest step that fed the job, or that preceded its start

    def begin(self) -> None:
        """Start the job; a job that needs no forward pass finishes at once."""
        try:
            self.job = self.start()
            if self.job is None:
                self.answer.set_result(None)
            else:
                self.step_input = next(self.job)
        except StopIteration as done:
            self.answer.set_result(done.value)
        except Exception as error:
            self.fail(error)

    def ready(self) -> Segment | None:
        """Return the segment that should be fed next; None if there is nothing to feed now."""
        if self.remainder is not None or self.step_input is None:
            return self.remainder
        try:
            self.requested = self.step_input.ready()
        except Exception as error:
            self.fail(error)
            return None
        return self.requested

    def advance(self, fed: Segment, logits: torch.Tensor, complete: bool) -> None:
        """Pass the logits to the job. The job then yields another step input or finishes. If only a
        part of an indivisible segment was fed, store the remainder for a later step instead.
        """
        assert self.job is not None and self.step_input is not None
        if not (complete or fed.divisible):
            segment = self.remainder or self.requested
            assert segment is not None
            self.remainder = segment.remainder(len(fed.tokens))
            return
        self.remainder = None
        try:
            self.step_input = self.job.send(logits)
        except StopIteration as done:
            self.step_input = None
            self.answer.set_result(done.value)
        except Exception as error:
            self.fail(error)

    def end(self, error: Exception) -> None:
        """End the job early; the part of its context that was fed stays cached in its session."""
        fed, self.step_input = self.remainder.context if self.remainder else 0, None
        if self.job is not None:
            with suppress(Exception):
                self.job.throw(JobEnded(fed))
        self.answer.set_exception(error)

    def fail(self, error: Exception) -> None:
        """End the job with an error. Errors that the job raises while it ends are ignored, because
        they are consequences of that error.
        """
        self.step_input = self.remainder = None
        if self.job is not None:
            with suppress(Exception):
                self.job.throw(error)
        self.answer.set_exception(error)


def startable(waiting: Sequence[Task], running: Sequence[Task]) -> list[Task]:
    """Return the waiting tasks that may start now, in order; a session runs only one task at a
    time. Pure.
    """
    owners = {task.owner for task in running}
    chosen: list[Task] = []
    for task in waiting:
        if task.owner not in owners:
            owners.add(task.owner)
            chosen.append(task)
    return chosen
