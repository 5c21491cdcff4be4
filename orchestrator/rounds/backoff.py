"""Decides when a drafter whose proposals bring nothing is left alone for a while. Pure.

Proposals that are wrong, late or not worth a row cost messages, and time where the drafter shares
the verifier's machine. After many steps for which proposals came and none was accepted, the drafter
is sent nothing during a pause. After the pause the drafter is sent all held-back commits at once,
because drafts may pay again. An honest drafter stops proposing by itself before that; a silent
drafter is never left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.protos.streams import Commit

PATIENCE = 32  # steps in vain before a pause; half as many in the trial after it
ROUND_TRIPS = 4  # round trips that the steps in vain must last, at least
PAUSES = 1.0, 3.0  # seconds: the first, and the longest; they double in between


@dataclass(slots=True)
class DraftBackoff:
    """The backoff of one opening of a drafter."""

    arrived: bool = False  # whether a proposal has come since the newest step
    _in_vain: int = 0  # number of steps in vain; below 0 is credit for as many more
    _since: float = 0.0  # when the first step in vain was
    _pause: float = 0.0  # seconds of the newest pause; 0 = drafts have paid since then
    _until: float = 0.0  # when the pause ends
    _held: Commit | None = None  # commits, as one, that the drafter was not sent

    def paused(self, now: float) -> bool:
        """Tell whether the drafter is left alone now."""
        return now < self._until

    def stepped(self, commit: Commit, now: float, round_trip: float) -> Commit | None:
        """Return the commit to send to the drafter now, which includes those held back; None while
        the drafter is left alone. `round_trip` is the seconds from a commit to the arrival, at the
        verifier, of the proposal that it causes.
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
        """Count a step. An accepted token makes up for as many steps in vain as a trial has."""
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
