"""An offer to the model thread by a job that waits for facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.forward.offer import Fixed
from engine.forward.segment import Segment


@dataclass(frozen=True, slots=True)
class Waiting(Fixed):
    """Waits until `ready` says what to feed, and has nothing to add."""

    ready: Callable[[], Segment | None]
