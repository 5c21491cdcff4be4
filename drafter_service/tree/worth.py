"""Which nodes are worth a drafter's time: those that should save the verifier more of its own.

Pure. A guess saves the verifier a token if it is right, if it arrives before the text has got there
by itself, and if the verifier gives it a row. So a node at a depth is worth being fed while

    chance of the node x skill ^ (levels until guesses are in time) x edge x seconds of a token
        > cost x seconds of a row of the drafter's,

where the chance is corrected by how much the drafter overrates itself, the edge is by how much the
likeliest child's chance is above the verifier's price for a row, and the cost is what a second of
the drafter, the cheaper device, is worth beside one of the verifier. Skill and edge are learned
from every text that is read. Where guesses are not worth it - the drafter is too far away, too
slow, or too bad for the text - none are sent, a text is read on in large pieces, and a new one is
begun only if none was read for a while: what made guesses worthless, a cold start too, may be over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tandem.engine.schedule.cost import Rates

LEAST = 0.01  # a node's chance, below which it is neither fed nor sent: one in a hundred such rows
# would save the verifier a step
SLACK = 0.125  # of the verifier's price: when a guess arrives, some of the tokens before it may
# have been accepted, and it is likelier then
BELIEVED = 0.8  # of a drafter's chances before anything is known
BINS = 10  # that chances are counted in
PACE, SHARED_PACE = 0.1, 0.02  # of what is learned from one token, of a session and of all
TRIAL_STEPS = 32  # of the drafter's, that a text takes which is begun in any case if none was read
TRIAL_SECONDS = 1.0  # for so long, or for this at the longest: drafts may pay by now
BOUNDARY = 0.5  # tokens that the text gains until the step begins that a guess is in time for
QUEUE = 0.5  # steps of the drafter's that a fact waits for
LONGEST = 4.0  # times the usual, that a token takes: what takes longer is a pause


@dataclass(slots=True)
class Conditions:
    """What a caller reports of its verifier and of the round trip, and how fast its texts are; 0 =
    unknown.
    """

    price: float = 0.0  # the chance below which a guessed node gets no row
    token_seconds: float = 0.0  # of the verifier's time, to each token of all texts
    delay: float = 0.0  # seconds from a fact's leaving to the arrival of what it causes
    pace: float = 0.0  # seconds from a token of a text to the next one, smoothed

    def observe(self, tokens: int, seconds: float) -> None:
        """A text has gained so many tokens in so many seconds."""
        each = seconds / tokens
        if not self.pace:
            self.pace = each
        share = 1 - (1 - PACE) ** tokens
        self.pace += share * (min(each, LONGEST * self.pace) - self.pace)


@dataclass(slots=True)
class DraftSkill:
    """How good the likeliest guess after a token is, smoothed."""

    right: float = BELIEVED  # how often it is what follows
    shares: list[float] = field(default_factory=lambda: [0.0] * BINS)  # of chances, by tenth

    def __post_init__(self) -> None:
        if not any(self.shares):
            self.shares[int(BELIEVED * BINS)] = 1.0

    @property
    def trust(self) -> float:
        """By how much the drafter overrates a chance, as a logarithm, never above 0."""
        claimed = sum(share * middle(place) for place, share in enumerate(self.shares))
        return min(0.0, math.log(max(self.right, LEAST) / max(claimed, LEAST)))

    def edge(self, price: float) -> float:
        """By how much the chance of a guess is above a price; one below it counts as 0."""
        scale = math.exp(self.trust)
        chances = ((share, scale * middle(place)) for place, share in enumerate(self.shares))
        return sum(share * max(0.0, chance - price) for share, chance in chances)

    def observe(self, chance: float, right: bool, pace: float) -> None:
        """A guess of this chance turned out right or not."""
        self.right += pace * (right - self.right)
        place = min(BINS - 1, int(chance * BINS))
        self.shares = [s + pace * ((p == place) - s) for p, s in enumerate(self.shares)]


def middle(place: int) -> float:
    """The middle of the chances of a bin."""
    return (place + 0.5) / BINS


@dataclass(frozen=True, slots=True)
class FeedThreshold:
    """What is worth being fed now, in logarithms of chances."""

    least: float = -math.inf
    fade: float = 0.0  # of a chance, for each level that is not in time
    trust: float = 0.0  # of a chance, for each level
    lead: float = 0.0  # the first level that is in time

    def pays(self, chance: float, depth: int) -> bool:
        """Whether a node so many levels after the root is."""
        late = max(0.0, self.lead - depth)
        return chance + depth * self.trust + (late and late * self.fade) > self.least


@dataclass(slots=True)
class DrafterHistory:
    """What a drafter has learned from all texts."""

    skill: DraftSkill = field(default_factory=DraftSkill)
    read_at: float = 0.0  # when a text was read last


class Worth:
    """Of one session's nodes; with `cost` 0 all that may be accepted are worth being fed."""

    def __init__(
        self, conditions: Conditions, rates: Rates, history: DrafterHistory, cost: float
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
        """Whether the text shall be read; once it shall, it shall."""
        self._begun = self._begun or self.threshold().pays(0.0, 0)
        return self._begun

    def observe_guess(self, chance: float, right: bool) -> None:
        """The likeliest guess after a token had this chance, and was right or not."""
        if self._skill is self._history.skill:
            self._skill = replace(self._skill)
        self._skill.observe(chance, right, PACE)
        self._history.skill.observe(chance, right, SHARED_PACE)

    def text_grew(self, tokens: int, now: float) -> None:
        """The text has so many more tokens."""
        if self._last_growth:
            self._conditions.observe(tokens, now - self._last_growth)
        self._last_growth = now
        pause = min(TRIAL_SECONDS, TRIAL_STEPS * self._rates.step)
        self._begun = self._begun or now - self._history.read_at >= pause
        if self._begun:
            self._history.read_at = now

    def threshold(self) -> FeedThreshold:
        """What is worth being fed now."""
        skill, conditions, rates = self._skill, self._conditions, self._rates
        if not (self._cost and conditions.token_seconds and conditions.pace and rates.row):
            return FeedThreshold()
        gain = skill.edge(conditions.price) * conditions.token_seconds
        gained = rates.step / conditions.pace  # tokens, while a level is drafted
        ahead = BOUNDARY + conditions.delay / conditions.pace + QUEUE * gained
        return FeedThreshold(
            math.log(self._cost * rates.row / gain) if gain else math.inf,
            math.log(max(skill.right, LEAST)),
            skill.trust,
            ahead / (1 - gained) if gained < 1 else math.inf,
        )
