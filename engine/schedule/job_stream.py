"""The part of a session's stream that the session's job uses. `engine.streams` fills the inbox and
sends the outgoing items.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tandem.engine.schedule.task import Task

BACKLOG = 4096  # if more items than this wait to be sent to a caller, its sessions pause

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(slots=True, eq=False)
class JobStream(Generic[In, Out]):
    """The stream of one opening, as its job sees it: an inbox of received items, and the queue of
    items to be sent.
    """

    outgoing: deque[tuple[int, Out]]
    stream_id: int
    turn: int
    inbox: deque[In] = field(default_factory=deque)
    halted: bool = False  # whether the caller asked for a pause
    strict: bool = False  # whether an unusable item from the caller is answered with an error
    task: Task | None = None

    def emit(self, item: Out) -> None:
        """Queue an item for the caller. Queued items are sent when the current step is over."""
        self.outgoing.append((self.stream_id, item))

    @property
    def behind(self) -> bool:
        """Whether the caller reads items too slowly."""
        return len(self.outgoing) > BACKLOG

    @property
    def paused(self) -> bool:
        """Whether the job has to pause, because the caller asked for a pause or reads items too
        slowly.
        """
        return self.halted or self.behind
