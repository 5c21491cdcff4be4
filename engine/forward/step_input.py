"""The input that a job offers to the model thread: a segment that must be fed before the job can
continue, and optional rows that are added if they save more time than they cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tandem.engine.forward.segment import Segment


class StepInput(Protocol):
    """The input that a job offers for the next step: a segment, and optional rows that are added to
    it if they save more time than they cost. A plain Segment is its own step input, without
    optional rows. The model thread calls all methods while it composes a step.
    """

    def ready(self) -> Segment | None:
        """Return the segment that must be fed before the job can continue, or None if the job waits
        for something else.
        """

    def chances(self) -> Iterator[float]:
        """Yield for each optional row the probability that the row will be useful, in descending
        order.
        """

    def segment(self, rows: int) -> Segment:
        """Return the segment with the first `rows` optional rows, or with as many of them as memory
        allows.
        """

    def wait_seconds(self, now: float, step: float) -> float:
        """Return how many seconds the next step should wait for more rows of this job, if no other
        session takes part in the step. `step` is the duration of the step in seconds if no rows are
        added.
        """


class FixedInput:
    """A step input that is complete from the start, without optional rows and without waiting."""

    __slots__ = ()

    def chances(self) -> Iterator[float]:
        """Yield nothing, since there are no optional rows."""
        return iter(())

    def segment(self, rows: int) -> Segment:
        """Raise AssertionError, since there are no optional rows that a caller could request."""
        raise AssertionError("there are no optional rows")

    def wait_seconds(self, now: float, step: float) -> float:
        """Return 0 seconds, since the input waits for nothing."""
        return 0.0
