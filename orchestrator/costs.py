"""What rounds cost on one worker, with drafts and without.

Pure. Machines change speed and crowds their size, so what is not done any more is taken to change
along with what is. A draft that becomes longer is no such change: it tells nothing of plain rounds.
"""

from __future__ import annotations

from orchestrator.learning import Mean, Outcome

HORIZON = 100.0  # rounds of each generation, after which an observation counts for 1/e
STALE = 8.0  # rounds of each that what is not done any more counts for in the end
STEEPEST = 2.0  # times what the verifier says, that a node may cost
LEAST_BARE = 0.1  # of a verification, that is not its nodes'


class Costs:
    """Seconds of a round of each kind, of a level of a draft, and of a node."""

    def __init__(self) -> None:
        self.plain = Mean(HORIZON)  # seconds of a round, if nobody drafts
        self.drafted = Mean(HORIZON)  # the same, if everybody does
        self.level = Mean(HORIZON)  # seconds of one level of a draft
        self._verify = Mean(HORIZON)  # seconds of a verification, if everybody drafts
        self._nodes = Mean(HORIZON)  # of them, the nodes' by what the verifier says
        self._added = Mean(HORIZON)  # seconds that the nodes of trials added
        self._told = Mean(HORIZON)  # that they should have added by what the verifier says
        self._token_seconds = 0.0

    @property
    def known(self) -> bool:
        """Both kinds of rounds have been seen."""
        return bool(self.plain.weight and self.drafted.weight)

    @property
    def _ratio(self) -> float:
        return max(0.0, self._added.value / self._told.value) if self._told.value else 1.0

    @property
    def steepness(self) -> float:
        """By how much a node costs more than the verifier says: that knows its steps, not what else
        is done for a node.
        """
        return min(STEEPEST, max(1.0, self._ratio))

    @property
    def _bare(self) -> float:
        """Seconds of a verification of a draft, but for its nodes."""
        nodes = self._ratio * self._nodes.value
        return max(self._verify.value - nodes, LEAST_BARE * self._verify.value)

    def node_seconds(self, crowd: int) -> float:
        """What one more node in each of so many drafts adds to a round."""
        return self._token_seconds * crowd * self.steepness

    def heard(self, outcome: Outcome, crowd: int) -> None:
        """Learn what does not depend on what others do meanwhile."""
        self._token_seconds = outcome.token_seconds
        if outcome.asked:
            self.level.add_cost(outcome.draft_seconds / max(1, outcome.levels), 1 / crowd)

    def saw(self, outcome: Outcome, crowd: int, usual: bool, tried: bool) -> None:
        """Learn from a round during which most did the same; `usual`: as they do when nothing is
        tried; `tried`: in a trial, just after rounds of the other kind.
        """
        if outcome.asked:
            self._saw_draft(outcome, crowd, usual, tried)
        else:
            self._saw_plain(outcome.verify_seconds, 1 / crowd, usual, tried)

    def _saw_plain(self, seconds: float, part: float, usual: bool, tried: bool) -> None:
        before = self.plain.value
        taken = self.plain.add_cost(seconds, part)
        for other in (self.drafted, self._verify, self._nodes):
            other.fade(part, STALE)
            if usual and before:
                other.value *= self.plain.value / before
        if tried and self.drafted.weight:
            self._compare(self._verify.value - taken, self._nodes.value, part)

    def _saw_draft(self, outcome: Outcome, crowd: int, usual: bool, tried: bool) -> None:
        part, before = 1 / crowd, self._bare
        nodes = outcome.nodes * outcome.token_seconds * crowd
        self.drafted.add_cost(outcome.propose_seconds + outcome.verify_seconds, part)
        taken = self._verify.add_cost(outcome.verify_seconds, part)
        self._nodes.add_cost(nodes, part)
        self.plain.fade(part, STALE)
        if usual and before:
            self.plain.value *= self._bare / before
        if tried and self.plain.weight:
            self._compare(taken - self.plain.value, nodes, part)

    def _compare(self, added: float, told: float, part: float) -> None:
        self._added.add(added, part)
        self._told.add(told, part)
