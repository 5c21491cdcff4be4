"""A step of a generation, and the reason why it had no draft although its request asked for drafts.
Operators ask for this reason first when speculation does not pay. The module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from tandem.orchestrator.rounds.generation import Finish
from tandem.protos.streams import Commit
from tandem.protos.types import TokenLogprobs


class Fallback(Enum):
    """The reasons why a step had no draft although drafts were requested."""

    FIRST_STEP = auto()  # the drafter's stream is opened after the first step
    NO_DRAFTER = auto()  # no drafter is connected, or its stream is not open yet
    REFUSED = auto()  # the drafter will not draft for this request
    LATE = auto()  # a draft arrived too late for the committed text
    NOT_VERIFIED = auto()  # a draft came since the previous step, but was not verified
    NO_DRAFT = auto()  # the drafter has sent no draft since the previous step
    NO_MATCH = auto()  # only the suffix method drafts, and it found no earlier occurrence
    BACKOFF = auto()  # the drafter is paused, because its drafts were useless


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the verifier for one request. A step carries either log-probabilities of the
    prompt or a commit. The commit is truncated at the first stop token and at the token limit.
    """

    commit: Commit
    seconds: float = 0.0  # seconds since the previous step, or since the opening
    finish: Finish | None = None
    matched_token_id: int | None = None  # the stop token that ended the generation
    drafter_switches: int = 0  # how often the stream was reopened after the drafter had answered
    verifier_switches: int = 0
    drafter_round_trip: float = 0.0  # smoothed round trip in seconds; 0 means not known
    verifier_round_trip: float = 0.0
    fallback: Fallback | None = None
    verifier_group: str = ""  # fingerprint of the verifier's model; empty if unchanged
    drafter: str = ""  # address of the drafter; empty if unchanged
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The committed tokens."""
        return self.commit.tokens


@dataclass(slots=True)
class DraftWatch:
    """Watches what the drafter of one generation has sent since the newest step."""

    requested: bool
    alone: bool  # whether the suffix method alone makes drafts
    steps: int = 0
    arrived: bool = False

    def stepped(self, commit: Commit, willing: bool, opened: bool, paused: bool) -> Fallback | None:
        """Return why this step had no draft, or None if the step had one or needed none. The
        drafter is `willing` if it has not refused, `opened` if the session is open there, and
        `paused` while it gets no commits.
        """
        arrived, self.arrived = self.arrived, False
        self.steps += 1
        if commit.drafted or not self.requested:
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
        if commit.late:
            return Fallback.LATE
        return Fallback.NOT_VERIFIED if arrived else Fallback.NO_DRAFT
