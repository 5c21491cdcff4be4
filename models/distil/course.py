"""The schedule of a training. The learning rate warms up, then stays at its peak. When drafts stop
getting better, the learning rate falls to zero, and the training ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

WARM_UP = 100  # steps until the learning rate reaches its peak
MAX_HOLD = 0.6  # the learning rate starts to fall at the latest after this share of the time limit
MAX_FALL = 2 / 3  # maximum length of the learning rate's fall, as a share of the steps before it
PATIENCE = 5  # the learning rate falls after this many evaluations without better drafts
MIN_IMPROVEMENT = 1.005  # drafts are better if their tokens per step rise by this factor


@dataclass
class Course:
    """The progress of a training along its schedule. The training may take `limit` minutes and
    learns from answers that have `tokens` tokens in total. The progress can be saved, so that
    the training can be continued later.
    """

    limit: float
    tokens: int = 0
    step: int = 0
    warms_from: int = 0  # the step at which the learning rate begins to warm up
    minutes: float = 0.0
    # the tokens per step that each evaluation measured on held-out answers
    looks: list[float] = field(default_factory=list)
    # the step at which the learning rate begins to fall, or 0 if it does not fall yet
    falls_from: int = 0
    last: int = 0  # the last step, which is known once the learning rate falls

    @classmethod
    def continued(cls, saved: dict[str, Any], limit: float, tokens: int) -> Self:
        """Continue a saved training with another time limit and other answers. If the saved
        training had ended, and the limit or the number of tokens is now larger, the learning rate
        warms up again.
        """
        before = cls(**saved)
        course = replace(before, limit=limit, tokens=tokens)
        if before.ended and (limit > before.limit or tokens > before.tokens):
            return replace(course, looks=[], warms_from=course.step, falls_from=0, last=0)
        return course

    @property
    def scale(self) -> float:
        """The learning rate of the next step, as a share of the peak learning rate."""
        warm = min(1.0, (self.step + 1 - self.warms_from) / WARM_UP)
        if not self.falls_from:
            return warm
        return warm * max(0.0, (self.last - self.step) / (self.last - self.falls_from))

    @property
    def ended(self) -> bool:
        """Whether the training has done its last step."""
        return self.falls_from > 0 and self.step >= self.last

    def advance(self, minutes: float) -> None:
        """Count one training step that took `minutes` minutes."""
        self.step += 1
        self.minutes += minutes
        if not self.falls_from and self.minutes >= MAX_HOLD * self.limit:
            self._fall()

    def look(self, tokens_per_step: float) -> None:
        """Record the measured tokens per step. If the tokens per step have stopped rising, let the
        learning rate fall.
        """
        self.looks.append(tokens_per_step)
        before, recent = self.looks[:-PATIENCE], self.looks[-PATIENCE:]
        risen = not before or max(recent) >= MIN_IMPROVEMENT * max(before)
        if not self.falls_from and not risen:
            self._fall()

    @property
    def minutes_left(self) -> float:
        """The minutes until the training ends. This is an upper limit until the learning rate
        begins to fall, and then an estimate.
        """
        if not self.falls_from:
            return self.limit - self.minutes
        return self.minutes / max(1, self.step) * (self.last - self.step)

    def _fall(self) -> None:
        in_time = self.step / self.minutes * max(0.0, self.limit - self.minutes)
        self.falls_from = self.step
        self.last = self.step + max(1, int(min(MAX_FALL * self.step, in_time)))
