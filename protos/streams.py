"""The values that streams carry between a cell and its model services: openings, the verifier's
commits and the drafter's proposals.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tandem.protos.types import (
    NO_DRAFT_SHAPE,
    Context,
    Distribution,
    DraftShape,
    SamplingParams,
    TokenLogprobs,
)

LONGEST_MATCH = 32  # maximum length of the suffix whose earlier occurrences are searched


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """A request for the log-probabilities of the tokens at positions `first` to `until` - 1 of a
    context, and of the `top` likeliest tokens at each of these positions. The first token of a text
    has no log-probability.
    """

    first: int
    until: int
    top: int


@dataclass(frozen=True, slots=True)
class Decoding:
    """Opens a stream at a verifier, which decodes after `context` until a stop token is generated
    or the text is `until` tokens long.

    With `lockstep`, each step waits for a whole proposal that continues exactly the text so far,
    and verifies all of it. With `once`, the stream ends after one step. With `suffix_shape`, the
    verifier itself proposes tokens by suffix matching: it searches for earlier occurrences of the
    newest tokens, and proposes the tokens that followed. Suffix matching searches the session's
    text, the `known` tokens, and recent answers of the same scope. The verifier also stores the
    generated answer, so that later requests can match it. `forced` is the maximum number of tokens
    that the verifier proposes at once where the grammar allows only one continuation. `group` is
    the verifier group that generated the text so far. `group` is used to choose the replica, and is
    not sent. The `prompt_logprobs` are reported before any generated token. If `until` is the
    length of the context, no token is generated.
    """

    context: Context
    sampling: SamplingParams
    until: int
    stop_token_ids: frozenset[int] = frozenset()
    lockstep: bool = False
    once: bool = False
    suffix_shape: DraftShape = NO_DRAFT_SHAPE
    request_id: str = ""
    traceparent: str = ""
    group: str = ""
    known: tuple[int, ...] = ()
    forced: int = 0
    prompt_logprobs: PromptLogprobs | None = None

    def cut(self, start: int, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        """Drop the new tokens that follow a stop token or exceed the length limit. `start` is the
        position of the first new token. Returns the remaining tokens, and whether decoding ends
        with them.
        """
        tokens = tokens[: self.until - start]
        stops = (index for index, token in enumerate(tokens) if token in self.stop_token_ids)
        if (end := next(stops, None)) is not None:
            return tokens[: end + 1], True
        return tokens, self.once or start + len(tokens) >= self.until


@dataclass(frozen=True, slots=True)
class Drafting:
    """Opens a stream at a drafter, which proposes what follows `context`. With `lockstep`, the
    drafter sends one whole proposal after every commit. With `once`, it sends only one proposal.
    """

    context: Context
    sampling: SamplingParams
    shape: DraftShape
    lockstep: bool = False
    once: bool = False
    request_id: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Durations of forward passes of a model in seconds. `newest` is the elapsed time of the
    running pass or the duration of the previous pass, whichever is longer. `newest` is 0 if there
    is no work. `light` estimates the duration of a pass over a single token. The estimate grows if
    the newest pass takes longer than predicted. `light` is 0 if no estimate is known.
    """

    newest: float = 0.0
    light: float = 0.0


@dataclass(frozen=True, slots=True)
class Commit:
    """Reports newly committed tokens: the accepted draft tokens, followed by the next token, which
    the verifier chose. `start` is the position of the first committed token. If `prompt_logprobs`
    were requested, `tokens` may also be a piece of the prompt.

    The verifier verified `drafted` proposed nodes, expected to accept `expected` of them, and
    emitted `accepted` of them. Since the previous commit, `late` nodes arrived too late, because
    the tokens at their positions were already committed. The last commit reports as `unused` how
    many nodes arrived in time but were never verified. The verifier itself proposed `found` of the
    verified nodes and `found_accepted` of the accepted nodes; a drafter proposed all others.
    """

    start: int
    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    epoch: int = 0
    reused: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    expected: float = 0.0
    late: int = 0
    unused: int = 0
    found: int = 0
    found_accepted: int = 0

    @property
    def sent(self) -> int:
        """How many of the verified nodes came from a drafter."""
        return self.drafted - self.found

    @property
    def sent_accepted(self) -> int:
        """How many of the emitted nodes came from a drafter."""
        return max(0, self.accepted - self.found_accepted)

    def committing(self, tokens: tuple[int, ...]) -> Commit:
        """Return a copy of the commit, shortened to `tokens`, a prefix of the commit's tokens."""
        return replace(
            self,
            tokens=tokens,
            accepted=min(self.accepted, len(tokens)),
            logprobs=self.logprobs[: len(tokens)],
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """Nodes of a token tree that continues the first `behind` committed tokens. The nodes have
    consecutive numbers, beginning with `first`. `parents` has the number of each node's parent, or
    0 if the parent is the root, which is the committed token before the tree. `scores` has the
    log-probability that each node is accepted if its parent is.
    """

    behind: int
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    first: int = 1
    source: int = 0
    distributions: tuple[Distribution, ...] = ()
    epoch: int = 0
    cached_len: int = 0
    arrived: float = field(default=0.0, compare=False)  # time of arrival on the receiver's clock


@dataclass(frozen=True, slots=True)
class EncodedProposal:
    """A proposal that an orchestrator forwards without decoding it. Only the verifier decodes
    `message`.
    """

    behind: int
    size: int  # in bytes
    message: object
    awaited: bool = False  # whether the verifier waits for this proposal


@dataclass(frozen=True, slots=True)
class Flow:
    """A message that tells the verifier to pause a session, or to resume it."""

    paused: bool
