"""Decides which nodes are worth feeding to the draft model: those that should save the verifier
more time than they cost the drafter.

The module is pure. A proposal saves the verifier a token if the proposal is right, if it arrives
before the text reaches its position, and if the verifier gives it a row. A node is therefore worth
feeding if this inequality holds:

    chance x frequency ^ (levels that the node is above the first level in time) x margin
        x the verifier's seconds per token > cost x the drafter's seconds per row.

The chance is the node's chance of being accepted, corrected by the trust in the drafter. The
frequency is how often the drafter's likeliest proposal is right. The margin is how much the
drafter's corrected chances exceed the verifier's price for a row, on average. Trust, frequency and
margin are learned from every text that the drafter processes (`engine.schedule.trust`). The cost is
the value of a second of the drafter's device, relative to a second of the more expensive device of
the verifier. The cost is at least the configured value. The cost is higher while the drafter waits
for processor cores. While it waits, other processes, such as the verifier, are assumed to wait
about as long for the core that the drafter uses.

If the drafter is too far away, too slow, or too often wrong for a text, it sends no proposals for
that text, and feeds the committed tokens in large pieces. Such a drafter begins another text only
after it has processed no text for a while. By then, the reason, such as a cold start of a service,
may no longer exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tandem.engine.schedule.batch import StepCosts
from tandem.engine.schedule.trust import Trust

# a node with a lower chance of being accepted is neither fed nor sent, because fewer than one in a
# hundred of such nodes would save the verifier a step
LEAST = 0.01
# a node is fed or sent only if its chance is at least this share of the verifier's price. The share
# is small, because the node's chance rises if its ancestors are accepted before the node arrives at
# the verifier
SLACK = 0.125
PACE = 0.1  # weight of each new token in the averages that are learned from a text
# a new text is begun if no text was processed for this many seconds, because drafts may be worth
# their cost now
TRIAL_SECONDS = 1.0
# average wait of a commit at a drafter, and of a proposal at a verifier, as a share of a step
HALF = 0.5
# a measured time per token is limited to this multiple of the usual time, because longer times are
# pauses
LONGEST = 4.0


@dataclass(slots=True)
class Conditions:
    """What is known about a caller: the values that it reports about its verifier and the round
    trip, and the pace at which its texts grow. 0 means unknown.
    """

    # the chance of acceptance below which the verifier gives a proposed node no row
    price: float = 0.0
    token_seconds: float = 0.0  # the verifier's seconds per token, over all texts
    delay: float = 0.0  # travel time of a commit and of the proposal that answers it
    pace: float = 0.0  # smoothed seconds between two tokens of a text

    def observe(self, tokens: int, seconds: float) -> None:
        """Update the pace with a text that has gained `tokens` tokens in `seconds` seconds."""
        each = seconds / tokens
        if not self.pace:
            self.pace = each
        share = 1 - (1 - PACE) ** tokens
        self.pace += share * (min(each, LONGEST * self.pace) - self.pace)


@dataclass(frozen=True, slots=True)
class FeedThreshold:
    """The threshold that the chance of a node must exceed for the node to be worth feeding now. All
    fields but `lead` are logarithms.
    """

    least: float = -math.inf
    # logarithm added to a node's chance for each level by which the node is above `lead`
    fade: float = 0.0
    trust: float = 0.0  # logarithm added to a node's chance for each level of its depth
    lead: float = 0.0  # the first level whose proposals arrive in time

    def pays(self, chance: float, depth: int) -> bool:
        """Tell whether a node `depth` levels after the root is worth feeding. `chance` is the
        logarithm of the node's chance of being accepted.
        """
        late = max(0.0, self.lead - depth)
        return chance + depth * self.trust + (late and late * self.fade) > self.least


@dataclass(slots=True)
class DrafterHistory:
    """What a drafter has learned from all the texts that it has processed."""

    trust: Trust = field(default_factory=Trust.of_all)
    read_at: float = 0.0  # time at which a text was last processed


class Worth:
    """Decides which nodes of one session are worth feeding. One second of drafter time counts as at
    least `least_cost` seconds of verifier time. If `least_cost` is 0, all nodes above the `floor`
    are worth feeding.
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
        # until there are observations of this text, the trust learned from all texts is used
        self._trust = history.trust
        self._last_growth = 0.0
        self._begun = False

    @property
    def floor(self) -> float:
        """The log-probability below which a node is neither fed nor sent."""
        return math.log(min(1.0, max(LEAST, self._conditions.price * SLACK)))

    @property
    def should_read(self) -> bool:
        """Whether the text should be fed to the draft model. Once True, the value stays True."""
        self._begun = self._begun or self.threshold().pays(0.0, 0)
        return self._begun

    def observe_proposal(self, chance: float, right: bool) -> None:
        """Update the trust with the likeliest proposal after a token: its claimed probability of
        acceptance, and whether it was correct.
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
        """Return the threshold that a node's chance must exceed for the node to be worth feeding
        now.
        """
        trust, conditions, averages = self._trust, self._conditions, self._costs.averages
        if not (self._least_cost and conditions.token_seconds and conditions.pace and averages.row):
            return FeedThreshold()
        cost = max(self._least_cost, min(1.0, self._costs.core_waits.ratio))
        # tokens that the text gains while one level of the tree is drafted
        gained = averages.step / conditions.pace
        ahead = HALF + conditions.delay / conditions.pace + HALF * gained
        return FeedThreshold(
            math.log(cost * averages.row / (trust.margin * conditions.token_seconds)),
            math.log(trust.frequency),
            min(0.0, trust.log),
            ahead / (1 - gained) if gained < 1 else math.inf,
        )
