"""A job on its way through the model thread.

A job is a generator: it yields the segment that it wants fed, receives the logits, and returns its
answer. A long segment may be fed over several steps; the job does not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from engine.plan import Segment
from engine.session import Ended

Job = Generator[Segment, torch.Tensor, Any]


@dataclass(slots=True, eq=False)
class Task:
    """A job, whose turn on a session it is, which it may be `closing`, and who waits for it."""

    owner: bytes
    start: Callable[[], Job | None]
    answer: Future[Any]
    arrived: float
    closing: bool = False
    deserted: bool = False  # nobody waits any more
    job: Job | None = None
    segment: Segment | None = None  # what is still to be fed for the answer that the job awaits
    fed: int = 0  # the step that last fed some of it, or that it came after
    partly: bool = False  # whether the segment is the rest of a longer one

    def begin(self) -> None:
        """Start the job; one that needs no forward pass is done at once."""
        try:
            self.job = self.start()
            if self.job is None:
                self.answer.set_result(None)
            else:
                self.segment = next(self.job)
        except StopIteration as done:
            self.answer.set_result(done.value)
        except Exception as error:
            self.fail(error)

    def advance(self, fed: Segment, logits: torch.Tensor) -> None:
        """Give the job its logits; it wants another step or is done. One fed in part waits on."""
        assert self.job is not None and self.segment is not None
        if fed is not self.segment:
            self.segment = self.segment.rest(len(fed.tokens))
            self.partly = True
            return
        self.partly = False
        try:
            self.segment = self.job.send(logits)
        except StopIteration as done:
            self.segment = None
            self.answer.set_result(done.value)
        except Exception as error:
            self.fail(error)

    def end(self, error: Exception) -> None:
        """End the job early; what was fed of its context stays in its session."""
        segment, self.segment = self.segment, None
        if self.job is not None and segment is not None:
            with suppress(Exception):
                self.job.throw(Ended(segment.context))
        self.answer.set_exception(error)

    def fail(self, error: Exception) -> None:
        """End the job with an error; what goes wrong while it ends is the same error's doing."""
        self.segment = None
        if self.job is not None:
            with suppress(Exception):
                self.job.close()
        self.answer.set_exception(error)


def startable(waiting: Sequence[Task], running: Sequence[Task]) -> list[Task]:
    """Which waiting tasks start now: in order, one at a time per session. Pure."""
    owners = {task.owner for task in running}
    chosen: list[Task] = []
    for task in waiting:
        if task.owner not in owners:
            owners.add(task.owner)
            chosen.append(task)
    return chosen


def pointless(waiting: Sequence[Task], running: Sequence[Task]) -> list[Task]:
    """Which running tasks may end unfinished: nobody waits for their answer, and their session is
    about to be closed. Pure.
    """
    closing = {task.owner for task in waiting if task.closing}
    return [task for task in running if task.deserted and task.owner in closing]
