"""Learns how far to trust the acceptance probabilities that a source of proposals claims. Pure.

A source claims an acceptance probability for each token that it proposes. The sum of the claimed
probabilities over some trials is the number of right tokens that the source has *claimed*. The
number of tokens that turned out to be *right* may differ from the claimed number. Therefore later
probabilities of the source are multiplied by the trust in the source:

    trust = (right + PRIOR) / (claimed + PRIOR), at most exp(MAX_LOG).

The upper bound limits the trust in a source that has claimed next to nothing and was right. The
prior stands for missing experience: a new source is treated like a source that has claimed half a
token and was right. The average number of right tokens per trial, whatever was claimed, is

    frequency = (right + PRIOR) / (trials + 2 PRIOR),

which is half a token before the first trial. The *margin* of a source is the average amount by
which its corrected probabilities exceed the price of a row. The margin tells how worthwhile it is
to verify the source's proposals.

New trials count more than old trials: each trial multiplies all earlier sums by 1 - pace. A trial
in which little was claimed provides little information, so its pace is lower. However, the pace is
at least SLOW, so all earlier trials of a session decay eventually. Therefore a source that was
wrong, and whose proposals are no longer verified, is trusted again later.

A shared trust learns from the trials of all sessions, at the pace SLOW, but not from trials in
which nothing was claimed. The trust for a new session starts with the sums of all sessions, scaled
down to at most BORROWED tokens. Therefore the session's own trials soon count more, and its
proposals are tried even if proposals in other sessions were wrong.

The verifier keeps one trust for each source in each session, and each step is a trial. A drafter
keeps one trust for each text, and each token of the text is a trial, whether or not the drafter has
sent a proposal for that token. Therefore a drafter's trust is updated even while the drafter sends
no drafts. A verifier's trust is based on accepted tokens, so it works even if a drafter makes false
claims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PACE, SLOW = 0.05, 0.01  # weight of a trial: for one session, and for all sessions
BORROWED, PRIOR = 2.0, 0.5  # both in tokens
MAX_LOG = 0.7  # upper bound of the logarithm of a trust


@dataclass(slots=True)
class Trust:
    """The trust in the proposals of one session, or of all sessions together. `shared` is the trust
    for all sessions, from which the trust for a session starts.
    """

    claimed: float = 0.0
    right: float = 0.0
    trials: float = 0.0
    gained: float = 0.0
    pace: float = PACE
    shared: Trust | None = None

    @classmethod
    def of_all(cls) -> Trust:
        """Return a new shared trust for all sessions, which learns slowly. The trust for each
        session starts from this shared trust.
        """
        return cls(pace=SLOW)

    def begun(self, pace: float = PACE) -> Trust:
        """Return the trust for a new session, which starts from this shared trust."""
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
        """The logarithm of the factor by which a claimed acceptance probability is multiplied."""
        return min(MAX_LOG, math.log((self.right + PRIOR) / (self.claimed + PRIOR)))

    @property
    def frequency(self) -> float:
        """The average number of right tokens per trial."""
        return (self.right + PRIOR) / (self.trials + 2 * PRIOR)

    @property
    def margin(self) -> float:
        """The average amount by which the source's corrected probabilities exceed the price of a
        row.
        """
        return (self.gained + PRIOR) / (self.trials + 2 * PRIOR)

    def observe(self, claimed: float, right: int, price: float = 0.0) -> None:
        """Learn from a trial: `claimed` is the number of right tokens that the source claimed, and
        `right` is the actual number. `price` is the acceptance probability below which a row was
        not worth its cost.
        """
        keep = 1 - max(SLOW, self.pace * min(1.0, claimed))
        self.gained = keep * self.gained + max(0.0, min(1.0, claimed * math.exp(self.log)) - price)
        self.claimed = keep * self.claimed + claimed
        self.right = keep * self.right + right
        self.trials = keep * self.trials + 1
        if self.shared and claimed:
            self.shared.observe(claimed, right, price)
