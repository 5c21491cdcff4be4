"""The values of the two streams: openings, the verifier's commits and the drafter's proposals."""

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
    of the `top` likeliest tokens in the place of each. The first token of a text has none.
    """

    first: int
    until: int
    top: int


@dataclass(frozen=True, slots=True)
class Decoding:
    """Opens a stream at a verifier: decode after `context` until a stop token or until there are
    `until` tokens in all.

    In `lockstep` each step waits for the proposal made after exactly its length and verifies all of
    it; `once` ends after one step. With `suffix_shape` the verifier proposes what followed the
    newest tokens where they occurred before, in the text, in `known` tokens or in recent answers of
    the scope, and remembers the answer. `forced` is how many tokens to propose at once about which
    the grammar leaves no choice. `group` is the verifier group that the text is from; this field is
    not sent. `prompt_logprobs` are reported first; an `until` of the context's length asks for
    nothing else.
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
        """Cut tokens, which begin at `start`, at the end of the text. Returns the tokens, and
        whether the end is reached.
        """
        tokens = tokens[: self.until - start]
        stops = (index for index, token in enumerate(tokens) if token in self.stop_token_ids)
        if (end := next(stops, None)) is not None:
            return tokens[: end + 1], True
        return tokens, self.once or start + len(tokens) >= self.until


@dataclass(frozen=True, slots=True)
class Drafting:
    """Opens a stream at a drafter: propose after `context`. In `lockstep` the drafter sends one
    whole proposal after every commit; with `once` it sends one proposal.
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
    """The seconds that forward passes of a model take. `newest` is the time of the running pass or,
    if that took longer, of the pass before; 0 means that there is no work. `light` is the time of a
    pass over a single token at that pace; 0 means not known.
    """

    newest: float = 0.0
    light: float = 0.0


@dataclass(frozen=True, slots=True)
class Commit:
    """From token `start` on, the text is `tokens`: the accepted tokens, then the next token; or a
    piece of the prompt, if `prompt_logprobs` are wanted.

    `drafted` proposed nodes were verified and `accepted` of them emitted, where the verifier
    expected `expected`. Since the commit before, `late` nodes arrived after their step; `unused`
    nodes that arrived in time were never verified. Of the verified and the accepted nodes, `found`
    and `found_accepted` were sent by no drafter: the verifier found them by itself.
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
        """The number of a drafter's nodes that were verified."""
        return self.drafted - self.found

    @property
    def sent_accepted(self) -> int:
        """The number of a drafter's nodes that were emitted."""
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
    """Nodes of a token tree after `behind` committed tokens, numbered from `first` on; `parents`
    are numbers too, 0 = after the committed tokens. `scores` are the log-probabilities that the
    nodes are accepted once their parents are.
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
    """A proposal that is passed on as it came. Only the verifier reads `message`."""

    behind: int
    size: int  # bytes
    message: object
    awaited: bool = False  # whether the verifier waits for this proposal and needs it


@dataclass(frozen=True, slots=True)
class Flow:
    """A message that tells the verifier to pause a session, or to go on."""

    paused: bool
