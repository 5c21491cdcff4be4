"""A session of a model service: its pages, and the tokens in the pages. The session's turn and
epoch let the service recognise stale calls and calls that rely on lost tokens.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from tandem.engine.cache.pages import PageTable
from tandem.protos.types import Context


class JobEnded(Exception):
    """Raised inside a job to end it early. `fed` is how many tokens of the job's context have
    already been fed.
    """

    def __init__(self, fed: int) -> None:
        super().__init__()
        self.fed = fed


@dataclass(slots=True, eq=False)
class Session:
    """One session. The pages in its `table` hold its `tokens`, and `turn` is its newest turn. The
    first `settled` tokens are committed, so other sessions of the same `scope` may reuse them.
    Tokens after the first `settled` tokens are only proposed.

    `epoch` is a random number that is drawn when the session is created. A call that relies on
    cached tokens states the epoch that it got in an earlier answer. Therefore a session that was
    lost and created anew is never mistaken for the earlier session.
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
        """The number of tokens that the session's pages hold."""
        return len(self.tokens)

    def committed(self, context: Context) -> array[int]:
        """Return all committed tokens of a call: the cached tokens it builds on, and the tokens it
        sent.
        """
        return self.tokens[: context.base] + array("I", context.tokens)

    def common_prefix_with(self, tokens: array[int]) -> int:
        """Return the length of the common prefix of the session's tokens and `tokens`."""
        return common_prefix_length(self.tokens, tokens)

    def cut(self, length: int) -> None:
        """Drop the tokens after the first `length`."""
        del self.tokens[length:]
        self.settled = min(self.settled, length)


def common_prefix_length(one: array[int], other: array[int]) -> int:
    """Return the length of the common prefix of two token sequences."""
    counts = range(1, min(len(one), len(other)) + 1)
    return bisect_left(counts, True, key=lambda count: one[:count] != other[:count])


@dataclass(slots=True)
class SessionCounts:
    """Counters of what has happened to sessions since the process started."""

    misses: int = 0
    stale: int = 0
    expired: int = 0
    evicted: int = 0
    reused_tokens: int = 0
