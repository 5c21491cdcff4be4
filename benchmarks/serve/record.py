"""The record of one request: its latencies, as its user notices them, and its tokens. This module
never reads a clock: callers pass all times, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Drafts:
    """The counts of steps and draft tokens of one request, or the sums over several requests.
    `histogram[i]` is the number of steps that accepted i draft tokens.
    """

    steps: int = 0
    with_drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: tuple[int, ...] = ()

    def __add__(self, other: Drafts) -> Drafts:
        longer = max(len(self.histogram), len(other.histogram))
        padded = [each.histogram + (0,) * (longer - len(each.histogram)) for each in (self, other)]
        return Drafts(
            self.steps + other.steps,
            self.with_drafts + other.with_drafts,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            tuple(a + b for a, b in zip(*padded, strict=True)),
        )

    def per_position(self) -> list[float]:
        """Return, for each draft position, the share of drafts whose token at this position was
        accepted.
        """
        reached = [sum(self.histogram[place:]) for place in range(1, len(self.histogram))]
        return [count / self.with_drafts for count in reached] if self.with_drafts else []


@dataclass(slots=True)
class Record:
    """The record of one request. `arrivals` are the times at which tokens arrived."""

    asked: float
    category: str = ""
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    drafts: Drafts = Drafts()
    error: str = ""

    @property
    def first(self) -> float:
        """The seconds from sending the request to its first token."""
        return self.arrivals[0] - self.asked

    @property
    def total(self) -> float:
        """The seconds from sending the request to its last token."""
        return self.arrivals[-1] - self.asked

    @property
    def per_token(self) -> float | None:
        """The mean seconds per token after the first token, or None if there is only one token."""
        return (self.total - self.first) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> Sequence[float]:
        """The seconds between successive arrivals of tokens."""
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:])]  # noqa: B905

    def meets(self, limits: Mapping[str, float]) -> bool:
        """Return whether no latency exceeds its limit. The limits are in milliseconds."""
        figures = {"ttft": self.first, "tpot": self.per_token or 0.0, "e2el": self.total}
        return all(figures[name] * 1000 <= limit for name, limit in limits.items())
