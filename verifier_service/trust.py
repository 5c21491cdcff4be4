"""Measures how right the proposals of one session, or of all sessions, have been of late. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_TRUST = 0.7
PACE, SHARED_PACE = 0.05, 0.005  # weight of one step in what a session and all sessions learn
FADE = 0.2  # share of the pace at which knowledge fades in a step that teaches nothing
BORROWED = 2.0  # claimed tokens, at most, that a session takes over from all sessions
PRIOR = 0.5  # tokens that a drafter has claimed, and was right with, before anything is known
IN_VAIN = 4.0  # times the pace: share of the promise that is lost if a wait was in vain
DRIFT = 0.002  # share of a lost promise that is restored in each step


@dataclass(slots=True)
class Trust:
    """The trust in the proposals of one session or of all sessions: `right` of the `claimed` tokens
    were accepted of late, counting only tokens after accepted ones. The `shared` trust learns from
    each observation of a session too.
    """

    claimed: float = 0.0
    right: float = 0.0
    promise: float = 1.0  # how often the likeliest token after the root is right, if there is one
    pace: float = PACE
    shared: Trust | None = None

    @classmethod
    def of_all(cls) -> Trust:
        """Return a trust that sessions begin with. It learns slowly, from all sessions."""
        return cls(pace=SHARED_PACE)

    def begun(self) -> Trust:
        """Return the trust of a new session. It equals this one until the session's own proposals
        have shown a little, so other sessions' wrong proposals cannot keep them from being tried.
        """
        weight = min(1.0, BORROWED / self.claimed) if self.claimed else 1.0
        return Trust(weight * self.claimed, weight * self.right, self.promise, shared=self)

    @property
    def log(self) -> float:
        """The log of the factor that corrects a chance that the source claims."""
        return min(MOST_TRUST, math.log((self.right + PRIOR) / (self.claimed + PRIOR)))

    def observe(self, claimed: float, right: int) -> None:
        """Learn from a step: a source claimed to know so many of its tokens, and so many were
        right. A step without claims shows nothing, and lets what was learned fade.
        """
        self.promise += DRIFT * (1 - self.promise)
        keep = 1 - self.pace * (FADE + (1 - FADE) * min(1.0, claimed))
        self.claimed = keep * self.claimed + claimed
        self.right = keep * self.right + right
        if self.shared:
            self.shared.observe(claimed, right)

    def observe_likeliest(self, right: bool) -> None:
        """Learn whether the likeliest token after the root was right."""
        self.promise += self.pace * (right - self.promise)
        if self.shared:
            self.shared.observe_likeliest(right)

    def waited_in_vain(self) -> None:
        """Learn that a step waited for a proposal in vain: none with a next token came."""
        self.promise -= IN_VAIN * self.pace * self.promise
        if self.shared:
            self.shared.waited_in_vain()
