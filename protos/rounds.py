"""The values between the front end and its round workers: a request, and its steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tandem.protos.types import NO_DRAFT_SHAPE, DraftShape, SamplingParams, TokenLogprobs


class Finish(Enum):
    """Why a generation ended; the numbers are the wire's."""

    STOP = 1
    LENGTH = 2


class Fallback(Enum):
    """Why a step had no draft although drafts were requested; the numbers are the wire's."""

    FIRST_STEP = 1  # the drafter is asked when it is over
    NO_DRAFTER = 2  # none is connected, or it has not been opened yet
    REFUSED = 3  # the drafter will not draft for this request
    LATE = 4  # a draft arrived when the text had passed it
    NOT_VERIFIED = 5  # one was sent since the step before, and none of its tokens was verified
    NO_DRAFT = 6  # the drafter had sent none since the step before
    NO_MATCH = 7  # of the text itself, where drafts are looked up in it
    BACKOFF = 8  # many brought nothing, and are tried again soon


@dataclass(frozen=True, slots=True)
class Members:
    """Addresses of all replicas that are to be used."""

    verifiers: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request that was checked and completed with defaults. After a lost worker it names the
    `completion` so far, and a `first_turn` above every turn of that worker.
    """

    request_id: str
    session_id: bytes
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    shape: DraftShape = NO_DRAFT_SHAPE
    client: bytes = b""
    completion: tuple[int, ...] = ()
    first_turn: int = 0
    traceparent: str = ""  # of the span that runs it
    verifier_group: str = ""  # that the completion is from


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the verifier for one request: the tokens that it committed, and its figures,
    which are those of a Fact.
    """

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    reused: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    expected: float = 0.0
    late: int = 0
    unused: int = 0
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
