"""What one session is to a model service: pages, the tokens in them, and what is needed to trust a
call about them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from tandem.engine.cache.pages import PageTable
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
    """What the pages of one table hold: `tokens`, as of `turn`. The first `settled` of them are
    committed text, which others of the same `scope` may begin with; the rest was only guessed.

    `epoch` is drawn when the session is opened. A call that builds on cached tokens names the epoch
    that it was answered with, so a late call that opens the session again can never pass for the
    session that was lost.
    """

    table: PageTable
    epoch: int
    scope: bytes
    turn: int = 0
    used: float = 0.0
    active: bool = False
    tokens: array[int] = field(default_factory=lambda: array("I"))
    settled: int = 0

    @property
    def length(self) -> int:
        """Tokens in the pages."""
        return len(self.tokens)

    def committed(self, context: Context) -> array[int]:
        """All committed tokens of a call."""
        return self.tokens[: context.base] + array("I", context.tokens)

    def common_prefix_with(self, tokens: array[int]) -> int:
        """How many leading tokens are the same."""
        return common_prefix_length(self.tokens, tokens)

    def cut(self, length: int) -> None:
        """Forget the tokens after the first ones."""
        del self.tokens[length:]
        self.settled = min(self.settled, length)


def common_prefix_length(one: array[int], other: array[int]) -> int:
    """How many leading tokens are the same."""
    counts = range(1, min(len(one), len(other)) + 1)
    return bisect_left(counts, True, key=lambda count: one[:count] != other[:count])


@dataclass(slots=True)
class SessionCounts:
    """What happened to sessions since the start."""

    misses: int = 0
    stale: int = 0
    expired: int = 0
    evicted: int = 0
    reused_tokens: int = 0
