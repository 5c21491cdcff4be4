"""Learns how right the chances are that a source of proposals claims. Pure.

A source claims a chance for each next token. In some trials a source has *claimed* a number of
tokens, and a number of tokens were *right*. A chance that the source claims next is then multiplied
by its trust:

    trust = (right + PRIOR) / (claimed + PRIOR), at most exp(MAX_LOG).

The bound keeps a source that claims next to nothing, and is right, from being believed without end
later. The prior is what is believed before anything is known: that the source has claimed half a
token, and was right. How many tokens are right in a trial, whatever is claimed, is

    frequency = (right + PRIOR) / (trials + 2 PRIOR),

which is half a token before anything is known. How much it is worth to verify its proposals where
a row has a price is the mean of what its corrected chances exceed the price by: its *margin*.

New trials count more than old ones: each multiplies what was learned before it by 1 - pace. A trial
in which little is claimed teaches little, so it makes little be forgotten; but at the pace SLOW all
that a session has shown fades. A source that was wrong, and therefore gets no more trials, is thus
believed again in the end.

What a session shows is shown to the trust of all sessions too, which learns at the pace SLOW; a
trial in which nothing is claimed shows nothing, however many sessions have such trials. A new
session begins with what those have shown, but as if it were BORROWED tokens at most: its own trials
soon count more, and wrong proposals elsewhere cannot keep its own from being tried.

The verifier has one trust for each source of each session, and a trial is a step. A drafter has one
for each text, and a trial is a token of the text, whether the drafter's proposal of that token was
sent or not. A drafter's trust is therefore updated even while it sends no drafts, and a verifier's
even if a drafter's claims are false.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PACE, SLOW = 0.05, 0.01  # weight of a trial in what a session and all sessions learn
BORROWED, PRIOR = 2.0, 0.5  # tokens
MAX_LOG = 0.7  # of trust


@dataclass(slots=True)
class Trust:
    """The trust in the proposals of one session, or of all sessions, the `shared` one."""

    claimed: float = 0.0
    right: float = 0.0
    trials: float = 0.0
    gained: float = 0.0
    pace: float = PACE
    shared: Trust | None = None

    @classmethod
    def of_all(cls) -> Trust:
        """Return a trust that sessions begin with. Such a trust learns slowly, from all
        sessions.
        """
        return cls(pace=SLOW)

    def begun(self, pace: float = PACE) -> Trust:
        """Return the trust of a new session."""
        share = BORROWED / max(self.claimed, self.right, BORROWED)
        return Trust(
            share * self.claimed,
            share * self.right,
            share * self.trials,
            share * self.gained,
            pace,
            self,
        )

    @property
    def log(self) -> float:
        """The logarithm of the factor that corrects a claimed chance."""
        return min(MAX_LOG, math.log((self.right + PRIOR) / (self.claimed + PRIOR)))

    @property
    def frequency(self) -> float:
        """How many tokens are right in a trial, on average."""
        return (self.right + PRIOR) / (self.trials + 2 * PRIOR)

    @property
    def margin(self) -> float:
        """How much the corrected chances exceed the price, on average."""
        return (self.gained + PRIOR) / (self.trials + 2 * PRIOR)

    def observe(self, claimed: float, right: int, price: float = 0.0) -> None:
        """Learn from a trial in which `claimed` tokens were claimed and `right` tokens were right,
        while a row had this price.
        """
        keep = 1 - max(SLOW, self.pace * min(1.0, claimed))
        self.gained = keep * self.gained + max(0.0, min(1.0, claimed * math.exp(self.log)) - price)
        self.claimed = keep * self.claimed + claimed
        self.right = keep * self.right + right
        self.trials = keep * self.trials + 1
        if self.shared and claimed:
            self.shared.observe(claimed, right, price)
