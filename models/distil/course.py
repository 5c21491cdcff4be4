"""How far training has come, and what follows: warm up, hold, and fall to the end once drafts stop
getting better.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WARM_UP = 100  # steps
HELD = 0.6  # of the time at the most; then the learning rate falls
FALLING = 2 / 3  # as many steps as before
LOOKS = 5  # at acceptance without one that is better: it has stopped rising
BETTER = 1.005  # times the best before


@dataclass
class Course:
    """The state of a training that may take `limit` minutes; it can be saved and gone on with."""

    limit: float
    step: int = 0
    minutes: float = 0.0
    looks: list[float] = field(default_factory=list)  # tokens per step on held-out answers
    falls_from: int = 0  # a step; 0: it holds
    last: int = 0  # the step to end at, known when it falls

    @property
    def scale(self) -> float:
        """The part of the peak learning rate that the next step uses."""
        warm = min(1.0, (self.step + 1) / WARM_UP)
        if not self.falls_from:
            return warm
        return warm * max(0.0, (self.last - self.step) / (self.last - self.falls_from))

    @property
    def ended(self) -> bool:
        """Whether there is no step to come."""
        return self.falls_from > 0 and self.step >= self.last

    def advance(self, minutes: float) -> None:
        """A step was made, which took so many minutes."""
        self.step += 1
        self.minutes += minutes
        if not self.falls_from and self.minutes >= HELD * self.limit:
            self._fall()

    def look(self, tokens_per_step: float) -> None:
        """What drafts bring now."""
        self.looks.append(tokens_per_step)
        before, recent = self.looks[:-LOOKS], self.looks[-LOOKS:]
        risen = not before or max(recent) >= BETTER * max(before)
        if not self.falls_from and not risen:
            self._fall()

    @property
    def minutes_left(self) -> float:
        """Minutes until the end: a limit while the rate holds, an estimate once it falls."""
        if not self.falls_from:
            return self.limit - self.minutes
        return self.minutes / max(1, self.step) * (self.last - self.step)

    def _fall(self) -> None:
        in_time = self.step / self.minutes * max(0.0, self.limit - self.minutes)
        self.falls_from = self.step
        self.last = self.step + max(1, int(min(FALLING * self.step, in_time)))
