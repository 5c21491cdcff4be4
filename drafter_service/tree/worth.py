"""Decides which nodes are worth a drafter's time, because they should save the verifier more time.

The module is pure. A proposal saves the verifier a token if the proposal is right, if it arrives
before the text reaches its position, and if the verifier gives it a row. A node is therefore worth
being fed while

    chance of the node x frequency ^ (levels until proposals are in time) x margin
        x seconds of a token > cost x seconds of a row of the drafter.

The chance is corrected by the trust in the drafter. The frequency is how often the drafter's
likeliest proposal is right. The margin is how much the drafter's corrected chances exceed the
verifier's price for a row, on average. Trust, frequency and margin are learned from every text that
is read (`engine.schedule.trust`). The cost is the value of a second of the drafter, the cheaper
device, relative to a second of the verifier. The cost is at least the configured one. The cost is
higher while the drafter waits for processor cores, because other processes, such as the verifier,
then wait for the drafter's core about as long.

If the drafter is too far away, too slow, or too often wrong for a text, it sends no proposals and
reads the text in large pieces. The drafter then begins a new text only if no text was read for a
while, because the cause, such as a cold start, may be over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tandem.engine.schedule.batch import StepCosts
from tandem.engine.schedule.trust import Trust

# a node with a lower chance is neither fed nor sent: fewer than one in a hundred rows for such
# nodes would save the verifier a step
LEAST = 0.01
# a node's chance must exceed this share of the verifier's price: when the node arrives, tokens
# before it may have been accepted, which makes the node likelier
SLACK = 0.125
PACE = 0.1  # weight of one token of a text in the averages that are learned from the text
# after this many seconds without reading any text, a new text is begun, because drafts may pay now
TRIAL_SECONDS = 1.0
HALF = 0.5  # a commit waits at a drafter, and a proposal at a verifier, for half a step on average
# a token counts as at most this many times the usual pace, because a longer time is a pause
LONGEST = 4.0


@dataclass(slots=True)
class Conditions:
    """The conditions at a caller: what the caller reports about its verifier and the round trip,
    and the pace of its texts. 0 means unknown.
    """

    price: float = 0.0  # the chance below which a proposed node gets no row
    token_seconds: float = 0.0  # seconds of the verifier per token, over all texts
    delay: float = 0.0  # seconds of travel of a commit and of the proposal that answers it
    pace: float = 0.0  # smoothed seconds from a token of a text to the next one

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a text that has gained `tokens` tokens in `seconds` seconds."""
        each = seconds / tokens
        if not self.pace:
            self.pace = each
        share = 1 - (1 - PACE) ** tokens
        self.pace += share * (min(each, LONGEST * self.pace) - self.pace)


@dataclass(frozen=True, slots=True)
class FeedThreshold:
    """The chance that a node must have to be worth being fed now. All fields but `lead` are
    logarithms.
    """

    least: float = -math.inf
    fade: float = 0.0  # logarithm added to a chance for each level that comes too late
    trust: float = 0.0  # logarithm added to a chance for each level
    lead: float = 0.0  # the first level that is in time

    def pays(self, chance: float, depth: int) -> bool:
        """Tell whether a node of this chance, `depth` levels after the root, is worth being fed."""
        late = max(0.0, self.lead - depth)
        return chance + depth * self.trust + (late and late * self.fade) > self.least


@dataclass(slots=True)
class DrafterHistory:
    """What a drafter has learned from all its texts."""

    trust: Trust = field(default_factory=Trust.of_all)
    read_at: float = 0.0  # time at which a text was last read


class Worth:
    """Decides which nodes of one session are worth being fed. The cost of a second of the drafter
    is `least_cost` or more. If `least_cost` is 0, all nodes above the `floor` are worth being fed.
    """

    def __init__(
        self,
        conditions: Conditions,
        costs: StepCosts,
        history: DrafterHistory,
        least_cost: float,
    ) -> None:
        self._conditions = conditions
        self._costs = costs
        self._history = history
        self._least_cost = least_cost
        self._trust = history.trust  # used until this text has taught something
        self._last_growth = 0.0
        self._begun = False

    @property
    def floor(self) -> float:
        """The log-probability below which a node is neither fed nor sent."""
        return math.log(min(1.0, max(LEAST, self._conditions.price * SLACK)))

    @property
    def should_read(self) -> bool:
        """Whether the text should be read. Once the property is true, it stays true."""
        self._begun = self._begun or self.threshold().pays(0.0, 0)
        return self._begun

    def observe_proposal(self, chance: float, right: bool) -> None:
        """Learn whether the likeliest proposal after a token was right, and which chance it
        claimed.
        """
        if self._trust is self._history.trust:
            self._trust = self._history.trust.begun(PACE)
        self._trust.observe(chance, right, self._conditions.price)

    def text_grew(self, tokens: int, now: float) -> None:
        """Note that the text has grown by `tokens` tokens."""
        if self._last_growth:
            self._conditions.observe(tokens, now - self._last_growth)
        self._last_growth = now
        self._begun = self._begun or now - self._history.read_at >= TRIAL_SECONDS
        if self._begun:
            self._history.read_at = now

    def threshold(self) -> FeedThreshold:
        """Return the threshold above which a node is worth being fed now."""
        trust, conditions, averages = self._trust, self._conditions, self._costs.averages
        if not (self._least_cost and conditions.token_seconds and conditions.pace and averages.row):
            return FeedThreshold()
        cost = max(self._least_cost, min(1.0, self._costs.core_waits.ratio))
        # tokens that the text gains while a level is drafted
        gained = averages.step / conditions.pace
        ahead = HALF + conditions.delay / conditions.pace + HALF * gained
        return FeedThreshold(
            math.log(cost * averages.row / (trust.margin * conditions.token_seconds)),
            math.log(trust.frequency),
            min(0.0, trust.log),
            ahead / (1 - gained) if gained < 1 else math.inf,
        )
