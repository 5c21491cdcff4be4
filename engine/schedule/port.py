"""What a job has of the stream that opened it. Whoever serves the stream fills and empties it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine.schedule.task import Task

BACKLOG = 4096  # items that a caller has not taken, above which its sessions pause

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(slots=True, eq=False)
class Port(Generic[In, Out]):
    """One opening as its job sees it: what arrived for it, and where to say something."""

    outgoing: deque[tuple[int, Out]]
    stream: int
    turn: int
    inbox: deque[In] = field(default_factory=deque)
    halted: bool = False  # the reader asked for a pause
    strict: bool = False  # the caller wants to be told of what cannot be taken
    task: Task | None = None

    def emit(self, item: Out) -> None:
        """Say something; it leaves when the step is over."""
        self.outgoing.append((self.stream, item))

    @property
    def paused(self) -> bool:
        """Whether whoever reads is too far behind."""
        return self.halted or len(self.outgoing) > BACKLOG
