"""What travels between the services, as plain values.

Frozen and compared by value; how they look on the wire is known to `codec` alone.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_NODES = 64  # of one draft
MAX_LEVELS = 32


@dataclass(frozen=True, slots=True)
class Context:
    """What a call says about the committed tokens: keep `base` cached tokens, drop the rest, append
    `tokens`.

    `turn` grows with every call of a session on a service; `epoch` is the one that the session was
    answered with last, 0 when it is opened. `tokens` is never empty: the newest committed token was
    never fed. `client` says, when a session is opened, whose cached beginnings it may start with.
    """

    session_id: bytes
    turn: int
    base: int
    tokens: tuple[int, ...]
    epoch: int = 0
    client: bytes = b""

    @property
    def length(self) -> int:
        """Committed tokens in all."""
        return self.base + len(self.tokens)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. Temperature 0 is greedy; top_k 0 and top_p 1 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How much to draft: at most `nodes` nodes on `levels` levels, at most `branches` children
    each.
    """

    levels: int
    branches: int = 1
    nodes: int = 0

    @classmethod
    def chain(cls, levels: int) -> DraftShape:
        """A straight draft."""
        return cls(levels, 1, levels)


NO_DRAFT_SHAPE = DraftShape(0)


@dataclass(frozen=True, slots=True)
class Draft:
    """A token tree in topological order; parent -1 is the root, the last committed token."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    @classmethod
    def chain(cls, tokens: tuple[int, ...]) -> Draft:
        """A straight draft."""
        return cls(tokens, tuple(range(-1, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drafter's answer. It holds `cached_len` tokens: committed ones, then the draft's leading
    nodes.
    """

    draft: Draft
    cached_len: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's answer: the nodes that stand, a path from the root, and the next token."""

    accepted: tuple[int, ...]
    next_token: int
    cached_len: int
    epoch: int
    reused: int = 0  # context tokens that another session of the same client had cached


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a model service holds."""

    name: str
    tokenizer_fingerprint: str
    vocab_size: int
    context_length: int
    end_token_ids: tuple[int, ...]
    device: str
    dtype: str
    sessions: int = 0
    max_sessions: int = 0
    exactness: str = ""
    cache_usage: float = 0.0
