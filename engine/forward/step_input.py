"""What a job gives the model thread to feed: something that must be fed for it to go on, and rows
that may be added as far as they pay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tandem.engine.forward.segment import Segment


class StepInput(Protocol):
    """What a job could have fed in the next step: a segment, and rows that may be added to it as
    far as they pay. A plain Segment is the step input of itself and nothing more. All are called on
    the model thread, while a step is composed.
    """

    def ready(self) -> Segment | None:
        """What must be fed for the job to go on; None if it waits for something else."""

    def chances(self) -> Iterator[float]:
        """The chance of each row that could be added to be of use, none above the one before."""

    def segment(self, rows: int) -> Segment:
        """The segment with the first `rows` of those, or as many as there is memory for."""

    def wait_seconds(self, now: float, step: float) -> float:
        """Seconds for which a step with no other session, which takes `step` of them without
        rows, should wait for more rows.
        """


class FixedInput:
    """A step input with nothing to add, that waits for nothing else."""

    __slots__ = ()

    def chances(self) -> Iterator[float]:
        """There are no rows to add."""
        return iter(())

    def segment(self, rows: int) -> Segment:
        """Not asked for."""
        raise AssertionError("there are no rows to add")

    def wait_seconds(self, now: float, step: float) -> float:
        """It waits for nothing."""
        return 0.0
