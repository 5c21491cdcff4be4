"""A session of a model service: its pages, the tokens in the pages, and the numbers by which the
service checks that a call fits these tokens.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from tandem.engine.cache.pages import PageTable
from tandem.protos.types import Context


class JobEnded(Exception):
    """Thrown into a job that has to end early. The job's session was fed the first `fed` tokens of
    its context.
    """

    def __init__(self, fed: int) -> None:
        super().__init__()
        self.fed = fed


@dataclass(slots=True, eq=False)
class Session:
    """One session. The pages in its `table` hold its `tokens`, and `turn` is its newest turn. The
    first `settled` tokens are committed text, with which other sessions of the same `scope` may
    begin. The other tokens were only proposed.

    `epoch` is a random number that is drawn when the session is opened. A call that builds on
    cached tokens names the epoch that an earlier answer gave. Therefore a session that a late call
    has opened again is never mistaken for the lost session.
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
        """The number of tokens in the pages."""
        return len(self.tokens)

    def committed(self, context: Context) -> array[int]:
        """Return all committed tokens of a call: the cached tokens it builds on, and the tokens it
        sent.
        """
        return self.tokens[: context.base] + array("I", context.tokens)

    def common_prefix_with(self, tokens: array[int]) -> int:
        """Return how many leading tokens of the session and of `tokens` are the same."""
        return common_prefix_length(self.tokens, tokens)

    def cut(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        del self.tokens[length:]
        self.settled = min(self.settled, length)


def common_prefix_length(one: array[int], other: array[int]) -> int:
    """Return how many leading tokens of two texts are the same."""
    counts = range(1, min(len(one), len(other)) + 1)
    return bisect_left(counts, True, key=lambda count: one[:count] != other[:count])


@dataclass(slots=True)
class SessionCounts:
    """The number of events that happened to sessions since the start, by kind."""

    misses: int = 0
    stale: int = 0
    expired: int = 0
    evicted: int = 0
    reused_tokens: int = 0
