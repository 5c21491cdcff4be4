"""What rounds cost that about so many generations share, with drafts and without. Pure."""

from __future__ import annotations

import math

from orchestrator.learning import MOST_SURPRISE, Mean, Outcome

HORIZON = 100.0  # rounds of each generation, after which an observation counts for 1/e
OPENINGS = 10.0  # the same for first drafts
FEW = 4.0  # nodes: what fewer seem to add is not all theirs
HUNG = 20.0  # plain rounds that a draft which does not come counts for at most
STALE = 4.0  # rounds of each that what is not done any more counts for in the end


class Costs:
    """Seconds of a round of each kind, of a level of a draft, and of a node."""

    def __init__(self) -> None:
        self.plain = Mean(HORIZON)  # seconds of a round, if nobody drafts
        self.drafted = Mean(HORIZON)  # the same, if everybody does
        self.level = Mean(HORIZON)  # seconds of one level of a draft
        self.opening = Mean(OPENINGS)  # seconds more that a generation's first draft takes
        self.lost = Mean(HORIZON)  # seconds of a round that wants a draft, if none comes
        self._verify = Mean(HORIZON)  # seconds of a verification, if everybody drafts
        self._nodes = Mean(HORIZON)  # of a draft
        self._added = Mean(HORIZON)  # seconds that the nodes of trials added
        self._tried = Mean(HORIZON)  # how many those were
        self._token_seconds = 0.0

    @property
    def known(self) -> bool:
        """Rounds of both kinds have been seen, or that drafts do not come."""
        return bool(self.plain.weight and (self.drafted.weight or self.lost.value))

    def node_seconds(self, crowd: int) -> float:
        """What one more node in each of so many drafts adds to a round: what the verifier says at
        the least. That knows its steps, not what else is done for a node.
        """
        seen = self._added.value / max(self._tried.value, FEW)
        return max(seen, self._token_seconds * crowd)

    def opened(self, outcome: Outcome, crowd: int) -> None:
        """Learn from a generation's first draft: its prompt is read for it."""
        if not self.drafted.value:
            return
        usual = self.drafted.value - self._verify.value
        most = MOST_SURPRISE * (usual + self.opening.value) if self.opening.weight > 1 else math.inf
        self.opening.add(min(most, max(0.0, outcome.propose_seconds - usual)), 1 / crowd)

    def missed(self, outcome: Outcome, crowd: int) -> None:
        """Learn from a draft that was wanted and did not come."""
        most = HUNG * (self.plain.value or outcome.verify_seconds)
        self.lost.add(min(most, outcome.propose_seconds), 1 / crowd)

    def heard(self, outcome: Outcome, crowd: int) -> None:
        """Learn what does not depend on what others do meanwhile."""
        self._token_seconds = outcome.token_seconds
        if outcome.asked:
            self.level.add_cost(outcome.draft_seconds / max(1, outcome.levels), 1 / crowd)

    def saw(self, outcome: Outcome, crowd: int, tried: bool) -> None:
        """Learn from a round during which most did the same; `tried`: in a trial, just after rounds
        of the other kind.
        """
        part, both = 1 / crowd, tried and self.known
        if outcome.asked:
            self.drafted.add_cost(outcome.propose_seconds + outcome.verify_seconds, part)
            taken = self._verify.add_cost(outcome.verify_seconds, part)
            self._nodes.add(outcome.nodes, part)
            self.plain.fade(part, STALE)
            if both:
                self._compare(taken - self.plain.value, outcome.nodes, part)
        else:
            taken = self.plain.add_cost(outcome.verify_seconds, part)
            for other in (self.drafted, self._verify, self._nodes):
                other.fade(part, STALE)
            if both:
                self._compare(self._verify.value - taken, self._nodes.value, part)

    def doubt(self) -> None:
        """Believe what comes more than what was."""
        nodes = self._nodes, self._added, self._tried
        for mean in (self.plain, self.drafted, self.lost, self._verify, *nodes):
            mean.weight = min(mean.weight, STALE)

    def forget_drafts(self) -> None:
        """The next draft is the first that counts, and tells more of nodes than all before."""
        for mean in (self.drafted, self._verify, self._nodes):
            mean.weight = 0.0
        for mean in (self._added, self._tried):
            mean.weight = min(mean.weight, 1.0)

    def _compare(self, added: float, nodes: float, part: float) -> None:
        self._added.add(added, part)
        self._tried.add(nodes, part)
