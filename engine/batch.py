"""What goes into the next step: everything short, and as much of long prompts as delays nobody.

Pure. Segments come least recently fed first, so whoever was left out is next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cost import CostModel, Load
from engine.plan import Segment

SHORT = 16  # tokens; a longer head is fed in pieces, as time allows, to the last
RESTING_SECONDS = 1.0  # without a short segment, until nobody counts as decoding
PIECE = 16  # tokens of a long head that a step takes at least, so that every prompt gets on


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold. A step that serves sessions which are decoding may take `slack` times
    longer for the sake of new prompts; one that serves prompts alone takes about `seconds`, since
    somebody may come.
    """

    sessions: int = 32
    tokens: int = 512
    slack: float = 0.5
    seconds: float = 0.25


@dataclass(slots=True)
class Pace:
    """How many seconds a step takes that serves the sessions now decoding, smoothed."""

    seconds: float = 0.0
    seen: float = -math.inf

    def saw(self, seconds: float, now: float) -> None:
        """A step served decoding sessions; without prompts it would take so long."""
        weight = 1.0 if now - self.seen > RESTING_SECONDS else 0.2
        self.seconds += weight * (seconds - self.seconds)
        self.seen = now

    def at(self, now: float) -> float:
        """0 if no session has been decoding lately."""
        return self.seconds if now - self.seen <= RESTING_SECONDS else 0.0


def load(segment: Segment) -> Load:
    """What feeding a segment costs."""
    return Load.chunk(len(segment.tokens), segment.context + segment.cached)


def is_long(segment: Segment) -> bool:
    """Whether a segment is a prompt that may be fed in pieces."""
    return segment.head > SHORT


def is_decoding(segment: Segment) -> bool:
    """Whether somebody waits for logits, and not for those of a long prompt."""
    return segment.wanted > 0 and not is_long(segment)


def compose(
    segments: Sequence[Segment], cost: CostModel, limits: Limits, pace: float
) -> list[tuple[int, Segment]]:
    """The next step: indices into `segments`, and what of each is fed. `pace` is how many seconds a
    step takes that serves the sessions now decoding, 0 if none is.
    """
    chosen: list[tuple[int, Segment]] = []
    total = Load()
    most, tokens = limits.sessions, limits.tokens
    if any(map(is_long, segments)):  # one of them gets on in every step
        most, tokens = most - 1, tokens - PIECE
    for index, segment in enumerate(segments):
        fits = len(chosen) < most and total.tokens + len(segment.tokens) <= tokens
        if not is_long(segment) and (fits or index == 0):
            chosen.append((index, segment))
            total += load(segment)
    usual = max(pace, cost.predict(total) if chosen else 0.0)
    allowed = usual * (1 + limits.slack) if usual else limits.seconds
    for index, segment in enumerate(segments):
        room = min(limits.tokens - total.tokens, len(segment.tokens))
        if not is_long(segment) or room <= 0 or len(chosen) == limits.sessions:
            continue
        timely = cost.tokens_within(allowed, total, segment.context, room)
        if timely < PIECE and any(is_long(segments[other]) for other, _ in chosen):
            break
        room = max(timely, min(PIECE, room))
        piece = segment if room >= len(segment.tokens) else segment.first(min(room, segment.head))
        chosen.append((index, piece))
        total += load(piece)
    return chosen
