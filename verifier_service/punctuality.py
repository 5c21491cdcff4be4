"""Whether a step that has nobody else in it should wait a moment for guesses that are on their way.

Pure. A wait costs what would be emitted meanwhile; it pays if what comes adds more. A drafter that
was late the last time is not waited for until it is punctual again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SMOOTHING = 0.2
GRACE = 2.5  # times the usual, that a guess may take
REMEMBERED = 64  # facts whose guesses may still come
MOST = 0.5  # of a plain step, that the first guess behind a fact is waited for


@dataclass(slots=True)
class Punctuality:
    """When the guesses of one session come. Times are in seconds, 0 = never seen."""

    lag: float = 0.0  # from a fact that no guess foresaw to the first guess behind it, smoothed
    gap: float = 0.0  # from a guess to the next one behind the same fact, smoothed
    kept: bool = True  # whether the newest of those guesses came, and about when it should
    _facts: dict[int, float] = field(default_factory=dict)  # such facts: when they left, by length
    _newest: int = -1  # the length of the text
    _behind: int = -1  # the newest length behind which a guess came
    _came: float = 0.0  # when the newest of them came

    def said(self, length: int, now: float, foreseen: bool) -> None:
        """A fact leaves, with which the text has this length."""
        if self.lag and now - self._facts.get(self._newest, now) > GRACE * self.lag:
            self.kept = False
        self._newest = length
        if not foreseen:
            self._facts[length] = now
        if len(self._facts) > REMEMBERED:
            del self._facts[next(iter(self._facts))]

    def came(self, behind: int, at: float) -> None:
        """A guess behind so many tokens arrived."""
        if behind == self._behind:
            self.gap = averaged(self.gap, at - self._came)
        elif said := self._facts.pop(behind, 0.0):
            took = at - said
            self.kept = not self.lag or took <= GRACE * self.lag
            self.lag = averaged(self.lag, took)
        self._behind, self._came = behind, at

    def left(self, now: float, step: float, expected: float, promise: float) -> float:
        """Seconds to wait for the next guess behind the newest fact. A step takes `step` of them;
        `expected` guessed nodes should be accepted, and `promise` more with another level.
        """
        said = self._facts.get(self._newest, 0.0)
        usual, since = (self.lag, said) if said else (self.gap, self._came)
        known = said or self._behind == self._newest
        if not (known and usual and promise * step > (1 + expected) * usual):
            return 0.0
        if said and not (self.kept and usual <= MOST * step):
            return 0.0
        return since + GRACE * usual - now


def averaged(mean: float, value: float) -> float:
    """A mean with another value."""
    return mean + (value - mean) * (SMOOTHING if mean else 1.0)
