"""Decides whether a step with a single session waits a moment for proposals that are on their way.

The module is pure. A wait costs the tokens that would be emitted meanwhile. A wait pays if the
proposals should add more tokens than the wait costs, even if it takes the longest time allowed.
After a drafter was late, steps do not wait for it until one of its proposals is in time again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SMOOTHING = 0.2
TOLERANCE = 2.5  # longest wait for a proposal, as a multiple of its usual time
REMEMBERED = 64  # number of newest commits that proposals may still answer


@dataclass(slots=True)
class ProposalTiming:
    """The times at which the proposals of one session come, in seconds. A time of 0 means that no
    proposal was seen.
    """

    # smoothed seconds from a commit that no proposal foresaw to the proposal after it
    lag: float = 0.0
    gap: float = 0.0  # smoothed seconds from a proposal to the next one after the same commit
    in_time: bool = True  # whether the newest proposal after an unforeseen commit was in time
    # the time at which each unforeseen commit left, by the length of its text
    _commits: dict[int, float] = field(default_factory=dict)
    _newest: int = -1  # the length of the text with the newest commit
    _behind: int = -1  # the length of the newest text after which a proposal added nodes
    _arrived: float = 0.0  # time at which the newest proposal that added nodes came

    @property
    def answered(self) -> bool:
        """Whether a proposal added nodes after the newest commit."""
        return self._behind == self._newest

    def commit_sent(self, length: int, now: float, predicted: bool) -> None:
        """Note that a commit leaves, which makes the text `length` tokens long. `predicted` tells
        whether a proposal foresaw the commit.
        """
        if self.lag and now - self._commits.get(self._newest, now) > TOLERANCE * self.lag:
            self.in_time = False
        self._newest = length
        if not predicted:
            self._commits[length] = now
        if len(self._commits) > REMEMBERED:
            del self._commits[next(iter(self._commits))]

    def proposal_arrived(self, behind: int, at: float, added: bool = True) -> None:
        """Note that a proposal for the text of `behind` tokens arrived. Every proposal counts as an
        answer to its commit. Steps wait for another proposal only if the newest one `added` nodes.
        """
        if sent := self._commits.pop(behind, 0.0):
            took = at - sent
            self.in_time = not self.lag or took <= TOLERANCE * self.lag
            self.lag = averaged(self.lag, took)
        elif added and behind == self._behind:
            self.gap = averaged(self.gap, at - self._arrived)
        if added:
            self._behind, self._arrived = behind, at

    def wait_seconds(self, now: float, step: float, expected: float, promise: float) -> float:
        """Return the seconds to wait for the next proposal after the newest commit. A step takes
        `step` seconds. `expected` proposed nodes should be accepted, and another level should add
        `promise` accepted nodes.
        """
        sent = self._commits.get(self._newest, 0.0)
        usual, since = (self.lag, sent) if sent else (self.gap, self._arrived)
        longest = TOLERANCE * usual
        known = usual and (self.in_time if sent else self.answered)
        pays = promise * step > (1 + expected) * longest
        return since + longest - now if known and pays else 0.0


def averaged(mean: float, value: float) -> float:
    """Return a smoothed mean that includes another value."""
    return mean + (value - mean) * (SMOOTHING if mean else 1.0)
