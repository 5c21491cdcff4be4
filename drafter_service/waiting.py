"""An offer to the model thread by a job that waits for facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.offer import Fixed
from engine.segment import Segment


@dataclass(frozen=True, slots=True)
class Waiting(Fixed):
    """Waits until `ready` says what to feed, and has nothing to add (`engine.offer.Offer`)."""

    ready: Callable[[], Segment | None]
