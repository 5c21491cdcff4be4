"""A stream from the point of view of its job. `engine.streams` fills and empties the stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tandem.engine.schedule.task import Task

BACKLOG = 4096  # a caller's sessions pause while more items than this wait to be sent to it

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(slots=True, eq=False)
class JobStream(Generic[In, Out]):
    """The stream of one opening, from the point of view of its job: an inbox of items that arrived,
    and the queue of items that the job sends.
    """

    outgoing: deque[tuple[int, Out]]
    stream_id: int
    turn: int
    inbox: deque[In] = field(default_factory=deque)
    halted: bool = False  # whether the reader asked for a pause
    strict: bool = False  # whether the caller gets an error for an item that cannot be used
    task: Task | None = None

    def emit(self, item: Out) -> None:
        """Send an item to the caller. The item leaves when the step is over."""
        self.outgoing.append((self.stream_id, item))

    @property
    def behind(self) -> bool:
        """Whether the caller takes items too slowly."""
        return len(self.outgoing) > BACKLOG

    @property
    def paused(self) -> bool:
        """Whether the job has to pause: the reader asked for it, or takes items too slowly."""
        return self.halted or self.behind
