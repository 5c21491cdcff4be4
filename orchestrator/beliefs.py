"""Whether drafts pay in rounds that about so many generations share, and when to try otherwise.

Pure. What is not done any more is not learned of either, so now and then all try it for a while. A
trial is paid for: it begins when as much time is saved up as it is expected to lose.
"""

from __future__ import annotations

from copy import deepcopy

from orchestrator.costs import HORIZON, STALE, Costs
from orchestrator.learning import Mean, Outcome

SURE = 12.0  # rounds of each that no surprise counts for
LONG = 200.0  # rounds of each generation, after which a draft's surprise counts for 1/e
LENGTHS = 1000.0  # tokens of each, the same for how long generations are
DOUBT = 100.0  # tokens of each that have to be seen before that is believed
HYSTERESIS = 0.03
TRIAL = 4  # rounds of every generation, for which all do what is believed to be worse
SETTLING = 4  # more of them, until their steps have fallen in with each other
LESSONS = (8, 16)  # the same for drafts, before all beliefs: they find better ones each time
HOPELESS = 0.7  # the gain below which the rest of them is left out
LITTLE = 0.1  # drafted tokens that stand, the same
PROBING = 0.005  # of the time may be lost by trials
EARLY = 0.5  # rounds more, each time rounds have been known e times as long
SILENT = 6.0  # drafts that did not come in trials, each of which doubles the price of the next one
RESTLESS = 0.2  # of a round without a draft, that is lost by doing in a trial what nobody did


class Beliefs:
    """What rounds cost and yield, learned from rounds and trials."""

    def __init__(self) -> None:
        self.costs = Costs()
        self.promised = Mean(HORIZON)  # tokens by a round with a draft
        self.surprise = Mean(LONG, 0.0, SURE)  # by how many it emits more than that
        self._starts = Mean(LENGTHS, 0.0, DOUBT)  # of generations, by token
        self.drafting = True  # is better
        self._lessons = list(LESSONS)
        self._rounds = 0.0  # of each generation, so far
        self._saved = 0.0  # seconds that may be lost by trials
        self._silent = 0.0  # drafts of each generation that did not come in trials, since one did

    def gain(self, promised: float) -> float:
        """The rate of rounds with a draft that promise so many tokens, to that of plain ones. For
        them the drafter reads each generation's prompt.
        """
        costs, emitted = self.costs, max(1.0, promised + self.surprise.value)
        reading = emitted * self._starts.value * costs.opening.value
        drafted = costs.drafted.value or costs.plain.value
        return emitted * costs.plain.value / (drafted + reading + costs.lost.value)

    def saw(self, outcome: Outcome, crowd: int, tried: bool, among_others: bool) -> None:
        """Learn from a round; `tried` in a trial, `among_others` of whom most did otherwise."""
        part = 1 / crowd
        self._rounds += part
        self._saved += (PROBING + EARLY / max(1.0, self._rounds)) * outcome.seconds
        if tried and self.costs.known:
            self._saved -= self._lost(outcome)
        self._starts.add(outcome.began / outcome.emitted, outcome.emitted * part)
        if outcome.asked:
            self._silent = 0.0
            self.costs.lost.add(0.0, part)
            self.promised.add(outcome.promised, part)
            self.surprise.add(outcome.emitted - outcome.promised, part)
        else:
            self.costs.lost.fade(part)
            for stale in (self.promised, self.surprise):
                stale.fade(part, STALE)
        if outcome.opened:
            self.costs.opened(outcome, crowd)
        elif not outcome.began:
            self.costs.heard(outcome, crowd)
            if not among_others:
                self.costs.saw(outcome, crowd, tried)
        if self.costs.known:
            gain = self.gain(self.promised.value)
            self.drafting = gain > (1 - HYSTERESIS if self.drafting else 1 + HYSTERESIS)

    def missed(self, outcome: Outcome, crowd: int, tried: bool) -> None:
        """A draft that was wanted did not come."""
        self.costs.missed(outcome, crowd)
        self._saved -= outcome.propose_seconds * tried
        self._silent = min(SILENT, self._silent + tried / crowd)

    def elsewhere(self) -> Beliefs:
        """The same, to be corrected by rounds of another crowd."""
        there = deepcopy(self)
        there.costs.doubt()
        there._rounds = 0.0
        return there

    def due(self, crowd: int) -> tuple[bool, int] | None:
        """The trial that is due: with drafts or without, and how many rounds of each."""
        if not self.costs.plain.weight:
            return False, TRIAL
        if not self.costs.known:
            return True, TRIAL
        lessons = self._lessons if self.costs.drafted.weight else []
        little = self.promised.value + self.surprise.value < 1 + LITTLE
        if little or self.gain(self.promised.value) < HOPELESS:
            lessons.clear()
        if lessons:  # drafts were as long as pays at prices that are known better now
            self.costs.forget_drafts()
            self.promised.weight = 0.0
            return True, lessons.pop(0)
        price = (SETTLING + TRIAL) * crowd * self._fee()
        self._saved = min(price, max(-price, self._saved))
        return (not self.drafting, TRIAL) if self._saved == price else None

    def _lost(self, outcome: Outcome) -> float:
        """Seconds that better rounds would have taken less than one of a trial."""
        plain = self.costs.plain.value
        if outcome.began:  # its prompt is not the trial's fault
            return outcome.propose_seconds * outcome.opened
        best = plain / max(1.0, self.gain(self.promised.value))
        return outcome.seconds - best * outcome.emitted + RESTLESS * plain

    def _fee(self) -> float:
        """Seconds that a round of a trial is expected to lose."""
        plain, gain = self.costs.plain.value, self.gain(self.promised.value)
        if self.drafting:
            return max(0.0, plain * (gain - 1)) + RESTLESS * plain
        drafted = self.costs.drafted.value
        dearer = max(0.0, (drafted + self.costs.lost.value) * (1 - gain)) if drafted else 0.0
        dearer += self.costs.opening.value / (SETTLING + TRIAL) + RESTLESS * plain
        return dearer * 2**self._silent
