"""When to ask again, and how long to wait first. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from tandem.protos.errors import Busy, TandemError, is_transient

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds
MOST_DOUBLINGS = 10
SILENT_SECONDS = 1.5  # that asking a silent one takes


@dataclass(slots=True)
class Retry:
    """Which of `count` front ends is asked, by its number. Counts failures since the last progress;
    gives up when there was none for `limit` seconds.
    """

    limit: float
    since: float  # of the last progress
    count: int = 1
    asked: int = 0
    failures: int = 0
    _left: int | None = None  # that was asked before, and was silent
    _busy: dict[int, float] = field(default_factory=dict)  # until when one is left alone

    def progress(self, now: float) -> None:
        """Something arrived."""
        self.since, self.failures = now, 0

    def may_return(self, silent: Container[int]) -> bool:
        """Whether the front end before, which was left because it was silent, answers again, while
        `asked` has brought nothing yet.
        """
        known = self._left is not None and self._left != self.asked
        return known and self.failures == 1 and self._left not in silent

    def pause(
        self, error: TandemError, now: float, chance: float, silent: Container[int] = ()
    ) -> float | None:
        """Seconds until `asked`, the next one, is to be asked; None: give up. Each of the others is
        asked at once, then there are pauses that double. One that was busy is left alone for as
        long as it asked, and one that is `silent` unless another asked for longer than it takes to
        find that out. `chance`, in [0, 1), spreads those who failed together.
        """
        self.failures += 1
        if not is_transient(error) or now - self.since >= self.limit:
            return None
        self._left = self.asked if self.asked in silent else None
        if isinstance(error, Busy):
            self._busy[self.asked] = now + error.retry_after
        following = [(self.asked + 1 + each) % self.count for each in range(self.count)]

        def free(number: int) -> float:
            return max(now + SILENT_SECONDS * (number in silent), self._busy.get(number, now))

        self.asked = min(following, key=free)
        wait = self._busy.get(self.asked, now) - now
        if self.failures < self.count:
            return max(0.0, wait)
        doubled = FIRST_PAUSE * 2.0 ** min(self.failures - 1, MOST_DOUBLINGS)
        return max(wait, min(LONGEST_PAUSE, doubled) * (0.5 + chance))
