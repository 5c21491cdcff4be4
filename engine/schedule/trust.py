"""Learns how far to trust the chances that a source of proposals claims. Pure.

A source claims a chance for each token that it proposes. The sum of these chances over some trials
is the number of tokens that the source has *claimed*. The number of tokens that were *right* may
differ. Therefore later chances of the source are multiplied by its trust:

    trust = (right + PRIOR) / (claimed + PRIOR), at most exp(MAX_LOG).

The bound limits the trust in a source that has claimed next to nothing and was right. The prior
stands for what is not known yet: a new source is treated like a source that has claimed half a
token and was right. The number of right tokens in a trial, whatever was claimed, is

    frequency = (right + PRIOR) / (trials + 2 PRIOR),

which is half a token before anything is known. The *margin* of a source is by how much its
corrected chances exceed the price of a row, on average. The margin says how much it is worth to
verify the source's proposals.

New trials count more than old trials: each trial multiplies what was learned before it by 1 - pace.
A trial in which little is claimed teaches little, so its pace is lower. But the pace is at least
SLOW, so everything that a session has shown decays in the end. Therefore a source that was wrong,
and whose proposals are no longer verified, is trusted again later.

The trust of all sessions learns from the trials of each session, at the pace SLOW. Trials in which
nothing is claimed are left out. A new session begins with what all sessions have shown, scaled down
to at most BORROWED tokens. Therefore the session's own trials soon count more, and its proposals
are tried even if proposals in other sessions were wrong.

The verifier has one trust for each source of each session, and each step is a trial. A drafter has
one trust for each text, and each token of the text is a trial, whether or not the drafter has sent
its proposal of that token. Therefore a drafter's trust is updated even while the drafter sends no
drafts. A verifier's trust is updated even if a drafter makes false claims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PACE, SLOW = 0.05, 0.01  # weight of a trial in what a session and all sessions learn
BORROWED, PRIOR = 2.0, 0.5  # tokens
MAX_LOG = 0.7  # highest logarithm of a trust


@dataclass(slots=True)
class Trust:
    """The trust in the proposals of one session or of all. `shared` is the trust of all
    sessions.
    """

    claimed: float = 0.0
    right: float = 0.0
    trials: float = 0.0
    gained: float = 0.0
    pace: float = PACE
    shared: Trust | None = None

    @classmethod
    def of_all(cls) -> Trust:
        """Return a new trust of all sessions, which learns slowly. Each session begins with it."""
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
        """Learn from a trial in which `claimed` tokens were claimed and `right` tokens were right.
        `price` is the chance below which a row did not pay.
        """
        keep = 1 - max(SLOW, self.pace * min(1.0, claimed))
        self.gained = keep * self.gained + max(0.0, min(1.0, claimed * math.exp(self.log)) - price)
        self.claimed = keep * self.claimed + claimed
        self.right = keep * self.right + right
        self.trials = keep * self.trials + 1
        if self.shared and claimed:
            self.shared.observe(claimed, right, price)
