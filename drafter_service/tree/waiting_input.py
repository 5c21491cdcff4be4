"""The step input that a job gives the model thread while it waits for commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.engine.forward.segment import Segment
from tandem.engine.forward.step_input import FixedInput


@dataclass(frozen=True, slots=True)
class WaitingInput(FixedInput):
    """A step input that waits until `ready` returns a segment, and has no rows to add."""

    ready: Callable[[], Segment | None]
