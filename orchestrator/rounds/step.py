"""A step of a generation, and why it had no draft although its request asked for drafts: what an
operator asks first when speculation does not pay. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from tandem.orchestrator.rounds.generation import Finish
from tandem.protos.streams import Fact
from tandem.protos.types import TokenLogprobs


class Fallback(Enum):
    """Why a step had no draft although drafts were requested."""

    FIRST_STEP = auto()  # the drafter is asked when it is over
    NO_DRAFTER = auto()  # none is connected, or it has not been opened yet
    REFUSED = auto()  # the drafter will not draft for this request
    LATE = auto()  # a draft arrived when the text had passed it
    NOT_VERIFIED = auto()  # one was sent since the step before, and none of its tokens was verified
    NO_DRAFT = auto()  # the drafter had sent none since the step before
    NO_MATCH = auto()  # of the newest tokens, where drafts are by suffix alone
    BACKOFF = auto()  # many brought nothing, and are tried again soon


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the verifier for one request: its fact, cut to the tokens that were committed; or
    what it has told of the prompt.
    """

    fact: Fact
    seconds: float = 0.0  # since the step before, or since the opening
    finish: Finish | None = None
    matched_token_id: int | None = None  # the stop token that ended the generation
    drafter_switches: int = 0  # so far: openings after one that was answered
    verifier_switches: int = 0
    drafter_round_trip: float = 0.0  # seconds, smoothed; 0 = not known
    verifier_round_trip: float = 0.0
    fallback: Fallback | None = None
    verifier_group: str = ""  # fingerprint of its model, where it is another than before
    drafter: str = ""  # address of the one that drafts, where it is another than before
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The committed tokens."""
        return self.fact.tokens


@dataclass(slots=True)
class DraftWatch:
    """What has come from the drafter of one generation since its newest step."""

    requested: bool
    alone: bool  # drafts are by suffix alone
    steps: int = 0
    arrived: bool = False

    def stepped(self, fact: Fact, willing: bool, opened: bool, paused: bool) -> Fallback | None:
        """Why this step had no draft, if it should have had one; `willing` is a drafter that has
        not refused, `opened` one that the session is open at, `paused` one that is left alone.
        """
        arrived, self.arrived = self.arrived, False
        self.steps += 1
        if fact.drafted or not self.requested:
            return None
        if self.alone:
            return Fallback.NO_MATCH
        if self.steps == 1:
            return Fallback.FIRST_STEP
        if not willing:
            return Fallback.REFUSED
        if not opened:
            return Fallback.NO_DRAFTER
        if paused:
            return Fallback.BACKOFF
        if fact.late:
            return Fallback.LATE
        return Fallback.NOT_VERIFIED if arrived else Fallback.NO_DRAFT
