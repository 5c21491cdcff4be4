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

LONGEST_MATCH = 32  # most tokens of a suffix that are compared


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """A request for the log-probabilities of a context's tokens from `first` on, below `until`, and
    of the `top` likeliest tokens at each of these positions. The first token of a text has no
    log-probability.
    """

    first: int
    until: int
    top: int


@dataclass(frozen=True, slots=True)
class Decoding:
    """Opens a stream at a verifier: the verifier decodes after `context` until a stop token comes
    or the text has `until` tokens.

    With `lockstep`, each step waits for the proposal that was made for exactly the text so far, and
    verifies the whole proposal. With `once`, the stream ends after one step. With `suffix_shape`,
    the verifier finds where the newest tokens occurred before, in the text, in `known` tokens or in
    recent answers of the scope. It proposes the tokens that followed there, and remembers the
    answer. `forced` is how many tokens to propose at once where the grammar leaves no choice.
    `group` is the verifier group that generated the text; this field is not sent. `prompt_logprobs`
    are reported first. If `until` is the length of the context, nothing else is reported.
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
        """Cut tokens, of which the first has position `start`, at the end of the text. Returns the
        tokens that are left, and whether the end is reached.
        """
        tokens = tokens[: self.until - start]
        stops = (index for index, token in enumerate(tokens) if token in self.stop_token_ids)
        if (end := next(stops, None)) is not None:
            return tokens[: end + 1], True
        return tokens, self.once or start + len(tokens) >= self.until


@dataclass(frozen=True, slots=True)
class Drafting:
    """Opens a stream at a drafter: the drafter proposes what follows `context`. With `lockstep`,
    the drafter sends one whole proposal after every commit. With `once`, it sends only one
    proposal.
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
    """The seconds that forward passes of a model take. `newest` is the time that the running pass
    has taken so far or, if the pass before it took longer, the time of that pass; 0 means that
    there is no work. `light` is the time of a pass over a single token at that pace; 0 means that
    it is not known.
    """

    newest: float = 0.0
    light: float = 0.0


@dataclass(frozen=True, slots=True)
class Commit:
    """Reports that the text from token `start` on is `tokens`: the accepted tokens, and then the
    next token. If `prompt_logprobs` are wanted, `tokens` may also be a piece of the prompt.

    The verifier verified `drafted` proposed nodes, expected to accept `expected` of them, and
    emitted `accepted` of them. Since the commit before, `late` nodes arrived after their step, and
    `unused` nodes arrived in time but were never verified. The verifier found `found` of the
    verified nodes and `found_accepted` of the accepted nodes by itself; all others came from a
    drafter.
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
        """Return the same commit with only these of its tokens."""
        return replace(
            self,
            tokens=tokens,
            accepted=min(self.accepted, len(tokens)),
            logprobs=self.logprobs[: len(tokens)],
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """Nodes of a token tree that continues the first `behind` committed tokens. Nodes are numbered,
    here from `first` on. `parents` has the number of each node's parent, or 0 if the parent is the
    last of those committed tokens. `scores` has the log-probability that each node is accepted if
    its parent is.
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
    arrived: float = field(default=0.0, compare=False)  # time of arrival by the receiver's clock


@dataclass(frozen=True, slots=True)
class EncodedProposal:
    """A proposal that is passed on without being decoded. Only the verifier decodes `message`."""

    behind: int
    size: int  # bytes
    message: object
    awaited: bool = False  # whether the verifier waits for this proposal and needs it


@dataclass(frozen=True, slots=True)
class Flow:
    """A message that tells the verifier to pause a session, or to go on."""

    paused: bool
