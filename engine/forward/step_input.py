"""The input that a job gives the model thread to feed: a segment that must be fed before the job
can go on, and rows that may be added if they save more time than they cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tandem.engine.forward.segment import Segment


class StepInput(Protocol):
    """The input that a job offers for the next step: a segment, and rows that may be added to it if
    they save more time than they cost. A plain Segment is its own step input, without further rows.
    The model thread calls all methods while it composes a step.
    """

    def ready(self) -> Segment | None:
        """Return the segment that must be fed before the job can go on. Return None if the job
        waits for something else.
        """

    def chances(self) -> Iterator[float]:
        """Yield, for each row that could be added, the chance that the row will be useful. The
        chances are in descending order.
        """

    def segment(self, rows: int) -> Segment:
        """Return the segment with the first `rows` of the rows that could be added, or with as many
        of them as memory allows.
        """

    def wait_seconds(self, now: float, step: float) -> float:
        """Return how many seconds a step without other sessions should wait for more rows. The step
        takes `step` seconds if no rows are added.
        """


class FixedInput:
    """A step input that is complete from the start: no rows are added to it, and it waits for
    nothing.
    """

    __slots__ = ()

    def chances(self) -> Iterator[float]:
        """Yield nothing, since there are no rows to add."""
        return iter(())

    def segment(self, rows: int) -> Segment:
        """Raise AssertionError: nobody may ask for rows, since there are none to add."""
        raise AssertionError("there are no rows to add")

    def wait_seconds(self, now: float, step: float) -> float:
        """Return 0 seconds, since the input waits for nothing."""
        return 0.0
