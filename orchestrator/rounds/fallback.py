"""Why a step had no draft although its request asked for drafts: what an operator asks first when
speculation does not pay. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.protos.rounds import Fallback
from tandem.protos.streams import Fact


@dataclass(slots=True)
class DraftWatch:
    """What has come from the drafter of one generation since its newest step."""

    requested: bool
    lookup: bool  # drafts are looked up in the text
    steps: int = 0
    arrived: bool = False

    def stepped(self, fact: Fact, willing: bool, opened: bool, paused: bool) -> Fallback | None:
        """Why this step had no draft, if it should have had one; `willing` is a drafter that has
        not refused, `opened` one that the session is open at, `paused` one that is left alone.
        """
        arrived, self.arrived = self.arrived, False
        self.steps += 1
        if fact.drafted or not self.requested:
            return None
        if self.lookup:
            return Fallback.NO_MATCH
        if self.steps == 1:
            return Fallback.FIRST_STEP
        if not willing:
            return Fallback.REFUSED
        if not opened:
            return Fallback.NO_DRAFTER
        if paused:
            return Fallback.BACKOFF
        if fact.late:
            return Fallback.LATE
        return Fallback.NOT_VERIFIED if arrived else Fallback.NO_DRAFT
