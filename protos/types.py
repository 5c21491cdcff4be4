"""The plain values that the services exchange.

The values are immutable and compared by content. Only `wire` converts these values to protobuf
messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tandem.protos.generation import NO_DEFAULTS, GenerationDefaults
from tandem.protos.grammar import Grammar

MAX_NODES = 64  # maximum number of nodes of a draft
MAX_LEVELS = 32
MAX_CHOICES = 256  # maximum number of tokens in a distribution that is sent
LAST_TURN = (1 << 32) - 1  # highest turn; a closing with this turn always closes its session
EXACT = "exact"  # value of `exactness` if the model is batch-invariant
MAX_LOGPROBS = 20  # maximum number of likeliest tokens reported beside an emitted token
MAX_BIASES = 1024
SEEDS = 1 << 53  # random seeds are below this number, so that JSON's numbers represent them exactly


class Rule(Enum):  # the numbers of this enum and of the next two are sent in messages
    """The rules for accepting draft tokens: by comparison with tokens sampled from the target, by
    rejection sampling, or by comparison with the target's likeliest token. TOP1 does not preserve
    the target's distribution.
    """

    MATCH = 1
    REJECT = 2
    TOP1 = 3


class Method(Enum):
    """The methods of drafting."""

    TREE = 1
    MEDUSA_LITE = 2
    SUFFIX = 3
    NGRAM = 3  # noqa: PIE796  # older clients' name of SUFFIX


class Schedule(Enum):
    """Strategies that determine how many levels are drafted ahead: as many as may help, a fixed
    number, or a number that adapts.
    """

    GOODPUT = 1
    CONSTANT = 2
    HEURISTIC = 3


@dataclass(frozen=True, slots=True)
class Context:
    """Tells a service which tokens are committed: it keeps the first `base` cached tokens, drops
    the rest and appends `tokens`.

    `turn` increases with every call that a service receives for the session. `epoch` is the epoch
    of the service's newest answer for the session, or 0 when the session is opened. `tokens` is
    never empty, because the model has not yet processed the newest committed token. When a session
    is opened, `client` identifies the client whose cached prefixes the session may use.
    """

    session_id: bytes
    turn: int
    base: int
    tokens: tuple[int, ...]
    epoch: int = 0
    client: bytes = b""

    @property
    def length(self) -> int:
        """The number of all committed tokens."""
        return self.base + len(self.tokens)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The options for sampling the next token. By default all options are off; temperature 0 is
    greedy.

    The completion begins at position `prompt_length`. The presence and frequency penalties count
    only tokens of the completion. The completion has no `end_tokens` among its first
    `min_new_tokens` tokens, has no `suppress_tokens`, and does not begin with
    `begin_suppress_tokens`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    prompt_length: int = 0
    min_new_tokens: int = 0
    end_tokens: tuple[int, ...] = ()
    rule: Rule = Rule.MATCH
    logprobs: int | None = None  # number of likeliest tokens to report beside each emitted one
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    grammar: Grammar | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always chosen."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether a penalty makes a token's probability depend on the tokens before it."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def historic(self) -> bool:
        """Whether sampling depends on where the completion begins."""
        begun = self.begin_suppress_tokens or self.grammar
        return self.penalised or self.min_new_tokens > 0 or bool(begun)

    @property
    def adjusting(self) -> bool:
        """Whether logits are modified before sampling."""
        return self.historic or bool(self.logit_bias or self.suppress_tokens)


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How far proposals may run ahead of the committed tokens: at most `nodes` nodes on `levels`
    levels, with at most `branches` children each. Nothing is drafted after a token to which the
    draft model gives a probability below `confidence`.
    """

    levels: int
    branches: int = 1
    nodes: int = 0
    method: Method = Method.TREE
    confidence: float = 0.0
    schedule: Schedule = Schedule.GOODPUT

    @classmethod
    def chain(cls, levels: int) -> DraftShape:
        """Return the shape of a chain with this number of levels."""
        return cls(levels, 1, levels)


NO_DRAFT_SHAPE = DraftShape(0)


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution from which a node's children were drawn, in order and without replacement.
    The weights are integers.
    """

    tokens: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A token tree in topological order. A parent of -1 means the root, which is the last committed
    token.

    A sampled draft has the distributions from which its tokens were drawn: `distributions[0]` for
    the children of the root, [n + 1] for those of node n. Without distributions, every token counts
    as proposed with probability 1.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    distributions: tuple[Distribution, ...] = ()

    @classmethod
    def chain(cls, tokens: tuple[int, ...]) -> Draft:
        """Return a draft whose tokens form a chain."""
        return cls(tokens, tuple(range(-1, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class ProposeResult:
    """A drafter's answer. The first `cached_len` tokens are in the drafter's cache: the committed
    tokens, and then the first nodes of the draft.
    """

    draft: Draft
    cached_len: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a token, and the likeliest tokens at the same position."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0  # rank of a prompt token; 1 means that no token is likelier


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's answer: the accepted nodes, as a path from the root, and the next token."""

    accepted: tuple[int, ...]
    next_token: int
    cached_len: int
    epoch: int
    reused: int = 0  # context tokens of an opening call that were cached already
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Describes the model and the memory of a model service."""

    name: str
    tokenizer_fingerprint: str
    vocab_size: int
    context_length: int
    end_token_ids: tuple[int, ...]
    device: str
    dtype: str
    sessions: int = 0
    exactness: str = ""
    cache_usage: float = 0.0
    kernels: str = ""
    fingerprint: str = ""  # hash of everything that determines the generated text
    weights_fingerprint: str = ""
    generation: GenerationDefaults = NO_DEFAULTS
    weights_bytes: int = 0  # size of the weights in memory
    cache_positions: int = 0  # number of tokens for which the KV cache has memory
    full_sessions: int = 0  # number of sessions whose full context fits in the cache at once
    # likeness of a drafter's tokenizer to the target's: equal, nearly equal, foreign
    tokenizer: str = ""
    masked_tokens: int = 0  # number of ids that mean another token to the target, so are masked

    @property
    def identity(self) -> str:
        """The fingerprint of the weights or, if that is unknown, `fingerprint`."""
        return self.weights_fingerprint or self.fingerprint
