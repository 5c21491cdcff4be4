"""Decides when a drafter whose proposals are useless is paused for a while. The module is pure.

Proposals that are wrong, late or never verified cost network messages. If the drafter runs on the
verifier's machine, useless proposals also slow the verifier down. If many steps get proposals of
which no token is accepted, the drafter is paused: it gets no commits for a while. After the pause,
the drafter gets all held-back commits at once, because its proposals may be useful again. A drafter
that works correctly stops proposing by itself before it is paused. A drafter that sends no
proposals is never paused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.protos.streams import Commit

# number of useless steps (without an accepted token) before the first pause; after a pause, half
# as many useless steps lead to the next pause
PATIENCE = 32
ROUND_TRIPS = 4  # a pause begins only after useless steps during this many round trips
# seconds of the first and the longest pause; each pause is up to twice as long as the one before
PAUSES = 1.0, 3.0


@dataclass(slots=True)
class DraftBackoff:
    """Decides when the drafter is paused, during one opening of a session."""

    arrived: bool = False  # whether a proposal has come since the newest step
    _in_vain: int = 0  # number of useless steps, minus those that accepted tokens cancel
    _since: float = 0.0  # time of the first useless step
    _pause: float = 0.0  # seconds of the newest pause; 0 once many tokens are accepted
    _until: float = 0.0  # time at which the pause ends
    _held: Commit | None = None  # held-back commits, merged into one

    def paused(self, now: float) -> bool:
        """Tell whether the drafter is paused at the time `now`."""
        return now < self._until

    def stepped(self, commit: Commit, now: float, round_trip: float) -> Commit | None:
        """Return the commit to send to the drafter now, merged with the commits that were held
        back. Return None while the drafter is paused. `round_trip` is the number of seconds from a
        commit until the verifier gets the proposal that answers the commit.
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
        """Count a step. Each accepted token cancels PATIENCE // 2 useless steps."""
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
