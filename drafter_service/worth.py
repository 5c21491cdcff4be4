"""Which nodes are worth a drafter's time: those that should save the verifier more of its own.

Pure. A guess saves the verifier a token if it is right, if it arrives before the text has got there
by itself, and if the verifier gives it a row. So a node at a depth is worth being fed while

    chance of the node x skill ^ (levels until a guess is in time) x edge x seconds of a token
        > COST x seconds of a row of the drafter's,

where the edge is by how much the likeliest child's chance is above the verifier's price for a row.
Skill and edge are learned from every text that is read, also where nothing is sent. Where guesses
are not worth it - the drafter is too far away, too slow, or too bad for the text - a text is read
on in large pieces, and most new ones are not begun.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from engine.cost import Rates

COST = 0.25  # seconds of a verifier that a drafter's second is worth: it is the cheaper device
LEAST = 0.01  # a node's chance, below which it is neither fed nor sent: one in a hundred such rows
# would save the verifier a step
SLACK = 0.125  # of the verifier's price: when a guess arrives, some of the tokens before it may
# have been accepted, and it is likelier then
FIRST = 0.8  # what is believed of a drafter before anything is known
PACE, SHARED_PACE = 0.1, 0.02  # of what is learned from one token, of a session and of all
CURIOUS = 16  # one text of so many is begun in any case
WAITING = 0.5  # tokens that the text gains, on average, until the step that a guess is in time for
TURNS = 1.5  # steps of the drafter's from a fact to the guess behind it: it waits for half of one


@dataclass(slots=True)
class Conditions:
    """What a caller says of its verifier and of the way there; 0 = unknown."""

    price: float = 0.0  # the chance below which a guessed node gets no row
    token_seconds: float = 0.0  # of the verifier's time
    delay: float = 0.0  # seconds from a fact's leaving to the arrival of what it causes


@dataclass(slots=True)
class Skill:
    """How good the likeliest guess behind a token is, and how fast texts go on, smoothed."""

    right: float = FIRST  # how often it is what follows
    claimed: float = FIRST  # and how often it should have been
    edge: float = FIRST  # by how much its chance is above the verifier's price, 0 if it is below
    seconds: float = 0.0  # from a token to the next one; 0 = unknown

    texts: Iterator[int] = field(default_factory=count)

    @property
    def trust(self) -> float:
        """By how much the drafter overrates a chance, as a logarithm."""
        return min(0.0, math.log(max(self.right, LEAST) / max(self.claimed, LEAST)))

    def saw(self, chance: float, right: bool, price: float, pace: float) -> None:
        """A guess of this chance, which turned out right or not."""
        self.right += pace * (right - self.right)
        self.claimed += pace * (chance - self.claimed)
        edge = max(0.0, chance * math.exp(self.trust) - price)
        self.edge += pace * (edge - self.edge)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is worth being fed now, in logarithms of chances."""

    least: float = -math.inf
    fade: float = 0.0  # of a chance, for each level that is not in time
    trust: float = 0.0  # of a chance, for each level
    lead: float = 0.0  # the first level that is in time

    def pays(self, chance: float, depth: int) -> bool:
        """Whether a node so many levels behind the root is."""
        late = max(0.0, self.lead - depth)
        return chance + depth * self.trust + late * self.fade > self.least


class Worth:
    """Of one session's nodes; `skill` is that of all sessions."""

    def __init__(self, conditions: Conditions, rates: Rates, skill: Skill) -> None:
        self._conditions, self._rates = conditions, rates
        self._shared, self._skill = skill, replace(skill)
        self._heard = 0.0
        self._curious = next(skill.texts) % CURIOUS == 0

    @property
    def floor(self) -> float:
        """The log-probability below which a node is neither fed nor sent."""
        return math.log(min(1.0, max(LEAST, self._conditions.price * SLACK)))

    def judge(self, chance: float, right: bool) -> None:
        """The likeliest guess behind a token had this chance, and was right or not."""
        for skill, pace in ((self._skill, PACE), (self._shared, SHARED_PACE)):
            skill.saw(chance, right, self._conditions.price, pace)

    def heard(self, tokens: int, now: float) -> None:
        """The text has so many more tokens."""
        if self._heard:
            seconds = (now - self._heard) / tokens
            for skill, pace in ((self._skill, PACE), (self._shared, SHARED_PACE)):
                skill.seconds += (pace if skill.seconds else 1.0) * (seconds - skill.seconds)
        self._heard = now

    @property
    def begins(self) -> bool:
        """Whether the text shall be read at all."""
        return self._curious or self.outlook().pays(0.0, 0)

    def outlook(self) -> Outlook:
        """What is worth being fed now."""
        skill, token = self._skill, self._conditions.token_seconds
        if not (token and skill.seconds):
            return Outlook()
        gain = max(skill.edge, LEAST * LEAST) * token
        delay = self._conditions.delay + TURNS * self._rates.step
        return Outlook(
            math.log(COST * self._rates.row / gain) if self._rates.row else -math.inf,
            math.log(max(skill.right, LEAST)),
            skill.trust,
            WAITING + delay / skill.seconds,
        )
