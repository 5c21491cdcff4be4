"""Decides whether a request is retried, at which front end and after which pause. The module is
pure: the current time is passed as an argument.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from tandem.protos.errors import Busy, TandemError, is_transient

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds
MAX_DOUBLINGS = 10
SILENT_SECONDS = 1.5  # assumed loss from calling an unresponsive front end


@dataclass(slots=True)
class Retry:
    """State of the retries of one request. `asked` is the index of the front end to call, out of
    `count` front ends. `failures` counts the failures since the last progress. The request is given
    up after `limit` seconds without progress.
    """

    limit: float
    since: float  # time of the last progress
    count: int = 1
    asked: int = 0
    failures: int = 0
    _left: int | None = None  # front end that was abandoned for not responding
    # time until which each busy front end is not called
    _busy: dict[int, float] = field(default_factory=dict)

    def progress(self, now: float) -> None:
        """Record that the request made progress at the time `now`."""
        self.since, self.failures = now, 0

    def may_return(self, silent: Container[int]) -> bool:
        """Tell whether the front end that was abandoned for not responding responds again. The
        result is False once the current front end, `asked`, has sent something or has failed.
        """
        known = self._left is not None and self._left != self.asked
        return known and self.failures == 1 and self._left not in silent

    def pause(
        self, error: TandemError, now: float, chance: float, silent: Container[int] = ()
    ) -> float | None:
        """Set `asked` to the front end to call next, and return the seconds to wait before that
        call, or None to give up. After a failure, the other front ends are tried without a pause.
        When all have failed, the pause doubles with every further failure. A busy front end is not
        called before the retry time that it gave. A front end in `silent` is called only if all
        others stay busy for longer than SILENT_SECONDS. `chance`, in [0, 1), randomizes the pause,
        so that clients that failed together do not retry together.
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
        doubled = FIRST_PAUSE * 2.0 ** min(self.failures - 1, MAX_DOUBLINGS)
        return max(wait, min(LONGEST_PAUSE, doubled) * (0.5 + chance))
