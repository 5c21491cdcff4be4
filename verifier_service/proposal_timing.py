"""Decides whether a step with a single session waits briefly for proposals that are about to
arrive.

The module is pure. Waiting costs the tokens that could be emitted in the meantime. A wait is worth
its cost if the proposals are expected to add more tokens than the wait costs, even if the wait
takes the longest time allowed. Once a drafter was late, steps do not wait for it until one of its
proposals arrives in time again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SMOOTHING = 0.2
TOLERANCE = 2.5  # longest wait for a proposal, as a multiple of the usual delay
REMEMBERED = 64  # maximum number of unanswered commits whose send times are kept


@dataclass(slots=True)
class ProposalTiming:
    """Delays with which the proposals of one session arrive, in seconds. A delay of 0 means that
    there are no measurements yet.
    """

    # smoothed seconds from a commit that no proposal predicted to the proposal that answers it
    lag: float = 0.0
    gap: float = 0.0  # smoothed seconds between two proposals after the same commit
    in_time: bool = True  # whether the newest answer to an unpredicted commit was in time
    # the time at which each unpredicted commit was sent, by the length of its text
    _commits: dict[int, float] = field(default_factory=dict)
    _newest: int = -1  # the length of the text after the newest commit
    _behind: int = -1  # length of the text before the newest proposal that added nodes
    _arrived: float = 0.0  # time at which the newest proposal that added nodes arrived

    @property
    def answered(self) -> bool:
        """Whether a proposal has added nodes after the newest commit."""
        return self._behind == self._newest

    def commit_sent(self, length: int, now: float, predicted: bool) -> None:
        """Note that a commit is sent, after which the text has `length` tokens. `predicted` tells
        whether a proposal had predicted the commit.
        """
        if self.lag and now - self._commits.get(self._newest, now) > TOLERANCE * self.lag:
            self.in_time = False
        self._newest = length
        if not predicted:
            self._commits[length] = now
        if len(self._commits) > REMEMBERED:
            del self._commits[next(iter(self._commits))]

    def proposal_arrived(self, behind: int, at: float, added: bool = True) -> None:
        """Note that a proposal has arrived that continues the text of `behind` tokens. Every
        proposal counts as an answer to the commit that made the text `behind` tokens long. Steps
        wait for a further proposal only if the newest proposal `added` nodes.
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
        """Return how many seconds to wait for the next proposal after the newest commit. A step
        takes `step` seconds. `expected` is the expected number of accepted nodes, and `promise` is
        the number of accepted nodes that another level is expected to add.
        """
        sent = self._commits.get(self._newest, 0.0)
        usual, since = (self.lag, sent) if sent else (self.gap, self._arrived)
        longest = TOLERANCE * usual
        known = usual and (self.in_time if sent else self.answered)
        pays = promise * step > (1 + expected) * longest
        return since + longest - now if known and pays else 0.0


def averaged(mean: float, value: float) -> float:
    """Return the smoothed mean after adding another value."""
    return mean + (value - mean) * (SMOOTHING if mean else 1.0)
