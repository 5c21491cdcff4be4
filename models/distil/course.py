"""The course of a training. The learning rate warms up and holds; once drafts stop getting better,
it falls until the training ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

WARM_UP = 100  # steps
MAX_HOLD = 0.6  # share of the time limit until which the peak learning rate is held
MAX_FALL = 2 / 3  # number of steps of the fall for each step before it
PATIENCE = 5  # number of looks without better drafts, after which the learning rate falls
MIN_IMPROVEMENT = 1.005  # least improvement, as a factor of the best tokens per step so far


@dataclass
class Course:
    """The state of a training that may take `limit` minutes and learns from answers of `tokens`
    tokens. A saved course can be continued.
    """

    limit: float
    tokens: int = 0
    step: int = 0
    warms_from: int = 0  # the step from which the learning rate warms up
    minutes: float = 0.0
    # tokens per step on held-out answers, look by look
    looks: list[float] = field(default_factory=list)
    # the step from which the learning rate falls; 0 means that it does not fall yet
    falls_from: int = 0
    last: int = 0  # the step to end at, known once the learning rate falls

    @classmethod
    def continued(cls, saved: dict[str, Any], limit: float, tokens: int) -> Self:
        """Continue a saved course with another limit and other answers. If the saved course has
        ended and there are now more minutes or more tokens, the learning rate warms up again.
        """
        before = cls(**saved)
        course = replace(before, limit=limit, tokens=tokens)
        if before.ended and (limit > before.limit or tokens > before.tokens):
            return replace(course, looks=[], warms_from=course.step, falls_from=0, last=0)
        return course

    @property
    def scale(self) -> float:
        """The part of the peak learning rate that the next step uses."""
        warm = min(1.0, (self.step + 1 - self.warms_from) / WARM_UP)
        if not self.falls_from:
            return warm
        return warm * max(0.0, (self.last - self.step) / (self.last - self.falls_from))

    @property
    def ended(self) -> bool:
        """Whether the last step of the training is done."""
        return self.falls_from > 0 and self.step >= self.last

    def advance(self, minutes: float) -> None:
        """Count a step, which took `minutes`."""
        self.step += 1
        self.minutes += minutes
        if not self.falls_from and self.minutes >= MAX_HOLD * self.limit:
            self._fall()

    def look(self, tokens_per_step: float) -> None:
        """Record the tokens per step that drafts bring now."""
        self.looks.append(tokens_per_step)
        before, recent = self.looks[:-PATIENCE], self.looks[-PATIENCE:]
        risen = not before or max(recent) >= MIN_IMPROVEMENT * max(before)
        if not self.falls_from and not risen:
            self._fall()

    @property
    def minutes_left(self) -> float:
        """The minutes until the end: an upper limit until the learning rate falls, then an
        estimate.
        """
        if not self.falls_from:
            return self.limit - self.minutes
        return self.minutes / max(1, self.step) * (self.last - self.step)

    def _fall(self) -> None:
        in_time = self.step / self.minutes * max(0.0, self.limit - self.minutes)
        self.falls_from = self.step
        self.last = self.step + max(1, int(min(MAX_FALL * self.step, in_time)))
