"""Decides when a drafter whose proposals bring nothing is left alone for a while. The module is
pure.

Proposals that are wrong, late or not worth a row cost messages. If the drafter shares the
verifier's machine, they also cost time. If many steps get proposals of which no token is accepted,
the drafter is left alone: it is sent nothing during a pause. After the pause the drafter is sent
all held-back commits at once, because drafts may pay again. An honest drafter stops proposing by
itself before a pause begins. A drafter that sends nothing is never left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.protos.streams import Commit

PATIENCE = 32  # steps in vain before a pause; the trial after the pause has half as many
ROUND_TRIPS = 4  # a pause needs steps in vain over at least this many round trips
PAUSES = 1.0, 3.0  # seconds of the first and the longest pause; each is twice the one before


@dataclass(slots=True)
class DraftBackoff:
    """The backoff of one opening of a drafter."""

    arrived: bool = False  # whether a proposal has come since the newest step
    _in_vain: int = 0  # number of steps in vain; a negative number allows as many more
    _since: float = 0.0  # when the first step in vain was
    _pause: float = 0.0  # seconds of the newest pause; 0 if drafts have paid since then
    _until: float = 0.0  # when the pause ends
    _held: Commit | None = None  # commits that the drafter was not sent, merged into one

    def paused(self, now: float) -> bool:
        """Tell whether the drafter is left alone now."""
        return now < self._until

    def stepped(self, commit: Commit, now: float, round_trip: float) -> Commit | None:
        """Return the commit to send to the drafter now, merged with the commits that were held
        back. Return None while the drafter is left alone. `round_trip` is the number of seconds
        from a commit until the verifier gets the proposal that the commit causes.
        """
        if commit.sent_accepted:
            self._until = 0.0
        if not self.paused(now):
            self._count(commit.sent_accepted, now, round_trip)
        self.arrived = False
        held, self._held = self._held, commit
        if held:
            self._held = replace(held, tokens=held.tokens + commit.tokens)
        if self.paused(now):
            return None
        held, self._held = self._held, None
        return held

    def _count(self, accepted: int, now: float, round_trip: float) -> None:
        """Count a step. An accepted token cancels as many steps in vain as a trial has."""
        counted = self._in_vain + self.arrived - PATIENCE // 2 * accepted
        self._in_vain = min(PATIENCE, max(-PATIENCE, counted))
        if self._in_vain == -PATIENCE:
            self._pause = 0.0
        if self._in_vain <= 1:
            self._since = now
        if self._in_vain == PATIENCE and now - self._since >= ROUND_TRIPS * round_trip:
            first, longest = PAUSES
            self._pause = min(longest, 2 * self._pause or first)
            self._since = self._until = now + self._pause
            self._in_vain = PATIENCE // 2
