"""What one session is to a model service: a KV range, the tokens in it, and what is needed to trust
a call about them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tandem.engine.cache.pages import PAGE, PageTable
from tandem.protos.types import Context


class JobEnded(Exception):
    """Thrown into a job that is to end early, when its session holds the first `fed` tokens of its
    context.
    """

    def __init__(self, fed: int) -> None:
        super().__init__()
        self.fed = fed


@dataclass(slots=True, eq=False)
class Session:
    """What one KV range holds: `tokens`, as of `turn`.

    `epoch` is drawn when the session is opened. A call that builds on cached tokens names the epoch
    that it was answered with, so a late call that opens the session again can never pass for the
    session that was lost. A session that was closed may stay, `retired`, for its client's next one.
    One that found no memory to grow is `preempted`: others that grow may have what it has.
    """

    table: PageTable
    epoch: int
    client: bytes
    turn: int = 0
    used: float = 0.0
    active: bool = False
    retired: bool = False
    preempted: bool = False
    tokens: array[int] = field(default_factory=lambda: array("I"))

    @property
    def length(self) -> int:
        """Committed tokens in the KV range."""
        return len(self.tokens)

    def committed(self, context: Context) -> array[int]:
        """All committed tokens of a call."""
        return self.tokens[: context.base] + array("I", context.tokens)

    def reusable(self, context: Context) -> int:
        """How many tokens a call builds on; one that opens the session again, because no answer
        arrived, finds the tokens that it sent before.
        """
        if context.epoch or self.client != context.client:
            return context.base
        return self.common_prefix_with(context.tokens[:-1])

    def common_prefix_with(self, tokens: Sequence[int]) -> int:
        """How many leading tokens are the same."""
        return common_prefix_length(self.tokens, array("I", tokens[: self.length]))


def common_prefix_length(one: array[int], other: array[int]) -> int:
    """How many leading tokens are the same."""
    counts = range(1, min(len(one), len(other)) + 1)
    return bisect_left(counts, True, key=lambda count: one[:count] != other[:count])


def prefix_donor(sessions: Iterable[Session], context: Context) -> Session | None:
    """The session of the same client that shares the longest prefix with an opening, if one is
    worth it: of all but the newest token, which is always fed.
    """
    if not context.client or len(context.tokens) <= PAGE:
        return None
    wanted = context.tokens[:-1]
    start = array("I", wanted[:PAGE])
    donors = (s for s in sessions if s.client == context.client and s.tokens[:PAGE] == start)
    return max(
        donors, key=lambda donor: (donor.common_prefix_with(wanted), donor.retired), default=None
    )


@dataclass(slots=True)
class SessionCounts:
    """What happened to sessions since the start."""

    misses: int = 0
    stale: int = 0
    expired: int = 0
    evicted: int = 0
    reused_tokens: int = 0
