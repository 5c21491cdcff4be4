"""The job's end of the stream that opened it. `engine.streams` fills and empties it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tandem.engine.schedule.task import Task

BACKLOG = 4096  # items that a caller has not taken, above which its sessions pause

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(slots=True, eq=False)
class JobStream(Generic[In, Out]):
    """One opening as its job sees it: what arrived for it, and where its items go."""

    outgoing: deque[tuple[int, Out]]
    stream_id: int
    turn: int
    inbox: deque[In] = field(default_factory=deque)
    halted: bool = False  # the reader asked for a pause
    strict: bool = False  # the caller gets an error for what cannot be used
    task: Task | None = None

    def emit(self, item: Out) -> None:
        """Send an item; it leaves when the step is over."""
        self.outgoing.append((self.stream_id, item))

    @property
    def behind(self) -> bool:
        """Whether the caller takes items too slowly."""
        return len(self.outgoing) > BACKLOG

    @property
    def paused(self) -> bool:
        """Whether the reader is too far behind."""
        return self.halted or self.behind
