"""Decides which nodes are worth a drafter's time: those that should save the verifier more time.

Pure. A proposal saves the verifier a token if the proposal is right, if it arrives before the text
has got there by itself, and if the verifier gives it a row. So a node at a depth is worth being fed
while

    chance of the node x skill ^ (levels until proposals are in time) x edge x seconds of a token
        > cost x seconds of a row of the drafter's,

where the chance is corrected by how much the drafter overrates itself, the edge is by how much the
likeliest child's chance is above the verifier's price for a row, and the cost is the value of a
second of the drafter, the cheaper device, relative to one of the verifier. Skill and edge are
learned from every text that is read. Where proposals are not worth it - the drafter is too far
away, too slow, or too bad for the text - none are sent and a text is read on in large pieces. A new
text is then begun only if no text was read for a while: the cause, such as a cold start, may be
over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tandem.engine.schedule.cost import AverageStepTimes

LEAST = 0.01  # the chance below which a node is neither fed nor sent: only one in a hundred rows
# for such nodes would save the verifier a step
SLACK = 0.125  # share of the verifier's price that a node's chance must exceed: when a proposal
# arrives, tokens before it may have been accepted, which makes it likelier
BELIEVED = 0.8  # how often a drafter is taken to be right before anything is known of it
BINS = 10  # number of bins in which chances are counted
PACE, SHARED_PACE = 0.1, 0.02  # weight of one token in what a session and all sessions learn
TRIAL_STEPS = 32  # drafter steps without any text read after which a new text is begun in any case
TRIAL_SECONDS = 1.0  # upper limit of the time of TRIAL_STEPS: drafts may pay by now
BOUNDARY = 0.5  # tokens that the text gains before the step begins that a proposal is in time for
QUEUE = 0.5  # drafter steps that a commit waits for
LONGEST = 4.0  # times the usual pace that one token counts at most: a longer time is a pause


@dataclass(slots=True)
class Conditions:
    """The conditions at a caller: its reports about its verifier and the round trip, and the pace
    of its texts. 0 means unknown.
    """

    price: float = 0.0  # the chance below which a proposed node gets no row
    token_seconds: float = 0.0  # the verifier's time for each token of all texts
    delay: float = 0.0  # seconds from a commit's leaving to the arrival of what it causes
    pace: float = 0.0  # seconds from a token of a text to the next one, smoothed

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a text that has gained so many tokens in so many seconds."""
        each = seconds / tokens
        if not self.pace:
            self.pace = each
        share = 1 - (1 - PACE) ** tokens
        self.pace += share * (min(each, LONGEST * self.pace) - self.pace)


@dataclass(slots=True)
class DraftSkill:
    """How good the likeliest proposal after a token is, smoothed."""

    right: float = BELIEVED  # share of the proposals that were right
    shares: list[float] = field(default_factory=lambda: [0.0] * BINS)  # share of proposals per bin

    def __post_init__(self) -> None:
        if not any(self.shares):
            self.shares[int(BELIEVED * BINS)] = 1.0

    @property
    def trust(self) -> float:
        """The log of the factor that corrects the drafter's overrated chances, never above 0."""
        claimed = sum(share * middle(place) for place, share in enumerate(self.shares))
        return min(0.0, math.log(max(self.right, LEAST) / max(claimed, LEAST)))

    def edge(self, price: float) -> float:
        """Return by how much the chance of a proposal is above a price, on average. A chance below
        the price counts as 0.
        """
        scale = math.exp(self.trust)
        chances = ((share, scale * middle(place)) for place, share in enumerate(self.shares))
        return sum(share * max(0.0, chance - price) for share, chance in chances)

    def observe(self, chance: float, right: bool, pace: float) -> None:
        """Learn from a proposal of this chance, which turned out right or not."""
        self.right += pace * (right - self.right)
        place = min(BINS - 1, int(chance * BINS))
        self.shares = [s + pace * ((p == place) - s) for p, s in enumerate(self.shares)]


def middle(place: int) -> float:
    """Return the middle of the chances of a bin."""
    return (place + 0.5) / BINS


@dataclass(frozen=True, slots=True)
class FeedThreshold:
    """The chance that a node must have to be worth being fed now, in logarithms."""

    least: float = -math.inf
    fade: float = 0.0  # added to a chance for each level that is not in time
    trust: float = 0.0  # added to a chance for each level
    lead: float = 0.0  # the first level that is in time

    def pays(self, chance: float, depth: int) -> bool:
        """Tell whether a node of this chance, `depth` levels after the root, is worth being fed."""
        late = max(0.0, self.lead - depth)
        return chance + depth * self.trust + (late and late * self.fade) > self.least


@dataclass(slots=True)
class DrafterHistory:
    """The experience of a drafter with all its texts."""

    skill: DraftSkill = field(default_factory=DraftSkill)
    read_at: float = 0.0  # when a text was read last


class Worth:
    """Decides which nodes of one session are worth being fed; with `cost` 0 all that may be
    accepted are.
    """

    def __init__(
        self, conditions: Conditions, rates: AverageStepTimes, history: DrafterHistory, cost: float
    ) -> None:
        self._conditions, self._rates, self._history, self._cost = conditions, rates, history, cost
        self._skill = history.skill  # until the text has taught something of its own
        self._last_growth = 0.0
        self._begun = False

    @property
    def floor(self) -> float:
        """The log-probability below which a node is neither fed nor sent."""
        return math.log(min(1.0, max(LEAST, self._conditions.price * SLACK)))

    @property
    def should_read(self) -> bool:
        """Whether the text should be read. Once true, this stays true."""
        self._begun = self._begun or self.threshold().pays(0.0, 0)
        return self._begun

    def observe_proposal(self, chance: float, right: bool) -> None:
        """Learn from the likeliest proposal after a token, which had this chance and was right or
        not.
        """
        if self._skill is self._history.skill:
            self._skill = replace(self._skill)
        self._skill.observe(chance, right, PACE)
        self._history.skill.observe(chance, right, SHARED_PACE)

    def text_grew(self, tokens: int, now: float) -> None:
        """Note that the text has grown by so many tokens."""
        if self._last_growth:
            self._conditions.observe(tokens, now - self._last_growth)
        self._last_growth = now
        pause = min(TRIAL_SECONDS, TRIAL_STEPS * self._rates.step)
        self._begun = self._begun or now - self._history.read_at >= pause
        if self._begun:
            self._history.read_at = now

    def threshold(self) -> FeedThreshold:
        """Return the threshold above which a node is worth being fed now."""
        skill, conditions, rates = self._skill, self._conditions, self._rates
        if not (self._cost and conditions.token_seconds and conditions.pace and rates.row):
            return FeedThreshold()
        gain = skill.edge(conditions.price) * conditions.token_seconds
        gained = rates.step / conditions.pace  # tokens of the text, while a level is drafted
        ahead = BOUNDARY + conditions.delay / conditions.pace + QUEUE * gained
        return FeedThreshold(
            math.log(self._cost * rates.row / gain) if gain else math.inf,
            math.log(max(skill.right, LEAST)),
            skill.trust,
            ahead / (1 - gained) if gained < 1 else math.inf,
        )
