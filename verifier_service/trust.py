"""How right the guesses of a session, or of all, have been of late. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_TRUST = 0.7
PACE, SHARED_PACE = 0.05, 0.005  # of what is learned from one step, of a session and of all
FADE = 0.2  # of that pace, at which a step that teaches nothing has what was learned forgotten
BORROWED = 2.0  # claimed tokens at most, that a session takes over from what all have shown
PRIOR = 0.5  # tokens that a drafter has claimed, and was right with, before anything is known
IN_VAIN = 4.0  # of that pace, of a promise that is lost if it is not kept
DRIFT = 0.002  # of a promise, that is given again in a step


@dataclass(slots=True)
class Trust:
    """What the guesses of a session are trusted with, or those of all sessions: `right` of the
    `claimed` tokens were accepted of late, of those after accepted ones. What a session shows is
    shown to the `shared` trust too.
    """

    claimed: float = 0.0
    right: float = 0.0
    promise: float = 1.0  # how often the likeliest token after the root is right, if there is one
    pace: float = PACE
    shared: Trust | None = None

    @classmethod
    def of_all(cls) -> Trust:
        """What a session begins with: it learns slowly, from all of them."""
        return cls(pace=SHARED_PACE)

    def begun(self) -> Trust:
        """Of a new session: this one, until its own guesses have shown a little. So wrong guesses
        of other sessions cannot keep its own from being tried.
        """
        weight = min(1.0, BORROWED / self.claimed) if self.claimed else 1.0
        return Trust(weight * self.claimed, weight * self.right, self.promise, shared=self)

    @property
    def log(self) -> float:
        """By how much drafters misjudge a chance, as a logarithm."""
        return min(MOST_TRUST, math.log((self.right + PRIOR) / (self.claimed + PRIOR)))

    def observe(self, claimed: float, right: int) -> None:
        """A step verified tokens that a drafter claimed to know so many of; one without any shows
        nothing, and what was learned fades.
        """
        self.promise += DRIFT * (1 - self.promise)
        keep = 1 - self.pace * (FADE + (1 - FADE) * min(1.0, claimed))
        self.claimed = keep * self.claimed + claimed
        self.right = keep * self.right + right
        if self.shared:
            self.shared.observe(claimed, right)

    def observe_likeliest(self, right: bool) -> None:
        """The likeliest token after the root was right, or not."""
        self.promise += self.pace * (right - self.promise)
        if self.shared:
            self.shared.observe_likeliest(right)

    def waited_in_vain(self) -> None:
        """A step waited for a guess, and what came has no token after the root."""
        self.promise -= IN_VAIN * self.pace * self.promise
        if self.shared:
            self.shared.waited_in_vain()
