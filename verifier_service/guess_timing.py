"""Decides whether a step with a single session waits a moment for guesses that are on their way.

Pure. A wait costs the tokens that would be emitted meanwhile; it pays if the guesses add more.
After a drafter was late, steps do not wait for it until it is in time again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SMOOTHING = 0.2
TOLERANCE = 2.5  # times the usual time that a guess may take
REMEMBERED = 64  # facts whose guesses may still come
MOST = 0.5  # share of a plain step's time that the first guess after a fact may usually take


@dataclass(slots=True)
class GuessTiming:
    """The times at which the guesses of one session come, in seconds. 0 means never seen."""

    lag: float = 0.0  # from a fact that no guess foresaw to the first guess after it, smoothed
    gap: float = 0.0  # from a guess to the next one after the same fact, smoothed
    in_time: bool = True  # whether the newest of those guesses came, and about when it should
    _facts: dict[int, float] = field(default_factory=dict)  # when unforeseen facts left, by length
    _newest: int = -1  # the length of the text with the newest fact
    _behind: int = -1  # the newest length after which a guess came
    _arrived: float = 0.0  # when the newest guess came
    _hoped: tuple[float, float] = (0.0, -1.0)  # newest guess and expected nodes at the last wait

    @property
    def answered(self) -> bool:
        """Whether a guess came after the newest fact."""
        return self._behind == self._newest

    def fact_sent(self, length: int, now: float, predicted: bool) -> None:
        """Note that a fact leaves, with which the text has this length. `predicted` tells whether a
        guess foresaw the fact.
        """
        if self.lag and now - self._facts.get(self._newest, now) > TOLERANCE * self.lag:
            self.in_time = False
        self._newest, self._hoped = length, (now, -1.0)
        if not predicted:
            self._facts[length] = now
        if len(self._facts) > REMEMBERED:
            del self._facts[next(iter(self._facts))]

    def guess_arrived(self, behind: int, at: float) -> None:
        """Note that a guess for the text of `behind` tokens arrived."""
        if behind == self._behind:
            self.gap = averaged(self.gap, at - self._arrived)
        elif sent := self._facts.pop(behind, 0.0):
            took = at - sent
            self.in_time = not self.lag or took <= TOLERANCE * self.lag
            self.lag = averaged(self.lag, took)
        self._behind, self._arrived = behind, at

    def wait_seconds(self, now: float, step: float, expected: float, promise: float) -> float:
        """Return the seconds to wait for the next guess after the newest fact. A step takes `step`
        seconds; `expected` guessed nodes should be accepted, and `promise` more with another level.
        """
        sent = self._facts.get(self._newest, 0.0)
        usual, since = (self.lag, sent) if sent else (self.gap, self._arrived)
        known = sent or self.answered
        if not (known and usual and promise * step > (1 + expected) * usual):
            return 0.0
        if sent and not (self.in_time and usual <= MOST * step):
            return 0.0
        arrived, hoped = self._hoped
        if self._arrived > arrived and expected <= hoped:
            return 0.0  # the guess that the last wait was for added nothing
        self._hoped = self._arrived, expected
        return since + TOLERANCE * usual - now


def averaged(mean: float, value: float) -> float:
    """Return a smoothed mean after another value."""
    return mean + (value - mean) * (SMOOTHING if mean else 1.0)
