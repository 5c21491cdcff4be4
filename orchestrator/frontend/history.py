"""Compute metrics of the last minutes from totals that were recorded over time.

The module is pure: callers pass the current time, which must never decrease.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

BUCKET_SECONDS = 5.0
BUCKETS = 180  # number of buckets, which together cover 15 minutes
# A gain is reported only if at least this many steps had a draft and at least this many had none.
MIN_GAIN_STEPS = 20


@dataclass(frozen=True, slots=True)
class Totals:
    """Cumulative counters, and the current numbers of running and waiting requests."""

    tokens: float = 0.0
    steps: float = 0.0
    steps_with_drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    # this counter and the next three leave out each request's first step
    tokens_with_drafts: float = 0.0
    seconds_with_drafts: float = 0.0
    tokens_without_drafts: float = 0.0
    seconds_without_drafts: float = 0.0
    finished: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """Metrics of one time interval. A metric is None if there is no data for it in the interval."""

    seconds: float
    tokens_per_second: float
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    goodput_with_drafts: float | None  # tokens per second of one request
    goodput_without_drafts: float | None
    steps_with_drafts: float | None  # fraction of all steps that had a draft
    goodput_gain: float | None  # goodput of all steps / goodput of steps without a draft
    finished: int
    failed: int
    running: int
    waiting: int

    @classmethod
    def between(cls, older: Totals, newer: Totals, seconds: float) -> Figures:
        """Return the metrics of the interval between two records of the totals."""

        def per(count: str, unit: str) -> float | None:
            return ratio(
                getattr(newer, count) - getattr(older, count),
                getattr(newer, unit) - getattr(older, unit),
            )

        plain = per("tokens_without_drafts", "seconds_without_drafts")
        return cls(
            seconds,
            ratio(newer.tokens - older.tokens, seconds) or 0.0,
            per("accepted", "drafted"),
            per("tokens", "steps"),
            per("tokens_with_drafts", "seconds_with_drafts"),
            plain,
            per("steps_with_drafts", "steps"),
            gain(older, newer) if plain else None,
            newer.finished - older.finished,
            newer.failed - older.failed,
            newer.running,
            newer.waiting,
        )


def gain(older: Totals, newer: Totals) -> float | None:
    """Return the tokens per second of all steps, divided by the tokens per second of the steps
    without a draft. The gain therefore depends on how many steps had a draft. Returns None if fewer
    than MIN_GAIN_STEPS steps had a draft, or fewer than MIN_GAIN_STEPS had none.
    """
    drafted = newer.steps_with_drafts - older.steps_with_drafts
    if min(drafted, newer.steps - older.steps - drafted) < MIN_GAIN_STEPS:
        return None
    plain = newer.tokens_without_drafts - older.tokens_without_drafts
    seconds = newer.seconds_without_drafts - older.seconds_without_drafts
    more = newer.tokens_with_drafts - older.tokens_with_drafts
    longer = newer.seconds_with_drafts - older.seconds_with_drafts
    return (plain + more) / (seconds + longer) * seconds / plain


def ratio(count: float, unit: float) -> float | None:
    """Return `count` divided by `unit`; None if `unit` is not positive."""
    return count / unit if unit > 0 else None


class History:
    """Divides time into buckets of equal length and keeps the last totals of each recent bucket."""

    def __init__(self, seconds: float = BUCKET_SECONDS, buckets: int = BUCKETS) -> None:
        self._seconds = seconds
        self._kept: deque[tuple[float, Totals]] = deque(maxlen=buckets + 1)

    def add(self, now: float, totals: Totals) -> None:
        """Record the totals at the time `now`. They replace earlier totals of the same bucket, but
        the first totals ever recorded are never replaced.
        """
        if len(self._kept) > 1 and self._bucket(self._kept[-1][0]) == self._bucket(now):
            self._kept.pop()
        self._kept.append((now, totals))

    def over(self, seconds: float) -> Figures:
        """Return the metrics of the last `seconds` seconds before the newest totals. If the history
        is shorter, the metrics cover the whole history.
        """
        if not self._kept:
            return Figures.between(Totals(), Totals(), 0.0)
        now, newest = self._kept[-1]
        old = [each for each in self._kept if each[0] <= now - seconds]
        then, oldest = old[-1] if old else self._kept[0]
        return Figures.between(oldest, newest, now - then)

    def series(self) -> list[Figures]:
        """Return the metrics of each bucket, from oldest to newest."""
        return [
            Figures.between(older, newer, now - then)
            for (then, older), (now, newer) in pairwise(self._kept)
        ]

    def _bucket(self, now: float) -> int:
        return int(now // self._seconds)
