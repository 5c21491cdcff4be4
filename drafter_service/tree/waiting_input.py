"""A step input to the model thread by a job that waits for facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.engine.forward.segment import Segment
from tandem.engine.forward.step_input import FixedInput


@dataclass(frozen=True, slots=True)
class WaitingInput(FixedInput):
    """Waits until `ready` returns a segment; has no rows to add."""

    ready: Callable[[], Segment | None]
