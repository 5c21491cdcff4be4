"""Predict from the load of a step how many seconds the step takes, with a model that learns from
earlier steps. The predicted time includes everything that the model thread does for a step, not
only the forward pass.

The module is pure: its inputs are loads and measured seconds, and its outputs are predicted
seconds. The module `batch` decides what to feed.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import product

import numpy as np

HORIZON = 200  # steps after which the weight of an observation is 1/e
DRIFT_WEIGHT = 0.02  # share of a prediction error that counts as a change of the machine's speed
# weights of a new step in the averages: if it is faster than the average, and if it is slower
FASTER_WEIGHT, SLOWER_WEIGHT = 0.3, 0.1
RESET_FACTOR = 8.0  # a step that is this many times faster than the averages resets the averages
WARM_UP_STEPS = 16  # steps before prediction errors are measured
REFIT_STEPS = 8  # steps between two fits after the warm-up, unless a prediction is far off
# Prior weights of the terms (step, token, key, session). They split a step's time among the terms
# as long as the loads do not determine the terms, as in plain decoding. If the prior of a
# session were a tenth of that of a token, rows would look too expensive.
PRIOR = np.array([1.0, 1.0, 0.1, 1.0])
RIDGE = np.diag(1e-3 / PRIOR)
MIN_SCALE = 1e-100  # avoids division by 0 for a term that has not occurred yet
ACTIVE = np.array(list(product((0.0, 1.0), repeat=4)))  # [16, 4] which terms may be nonzero
BOTH_ACTIVE = ACTIVE[:, :, None] * ACTIVE[:, None, :]  # [16, 4, 4] 1 if both may be nonzero
INACTIVE = np.eye(4) * (1 - BOTH_ACTIVE)  # [16, 4, 4] the equations "term = 0" of inactive terms


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The load of a step, which is the sum of the loads of its segments."""

    tokens: int = 0
    attended: int = 0  # keys that a row attends to, summed over the rows
    sessions: int = 0

    @classmethod
    def chunk(cls, tokens: int, keys: int) -> StepLoad:
        """Return the load of one session that feeds `tokens` tokens after `keys` cached tokens."""
        return cls(tokens, tokens * keys + tokens * (tokens + 1) // 2, 1)

    def __add__(self, other: StepLoad) -> StepLoad:
        return StepLoad(
            self.tokens + other.tokens,
            self.attended + other.attended,
            self.sessions + other.sessions,
        )


@dataclass(slots=True)
class AverageStepTimes:
    """The average times of recent steps without long prompts. Newer steps count more. The averages
    are 0 before the first such step.
    """

    step: float = 0.0
    row: float = 0.0  # seconds per row whose logits were asked for
    token: float = 0.0  # seconds per token that the step is expected to yield

    def observe(self, seconds: float, rows: int, expected: float) -> None:
        """Update the averages with a step that took `seconds`. A step that is RESET_FACTOR times
        faster than the average resets the averages, because whatever slowed down earlier steps is
        over.
        """
        if RESET_FACTOR * seconds < self.step and RESET_FACTOR * seconds / rows < self.row:
            self.step = self.row = self.token = 0.0
        self.step = smoothed(self.step, seconds)
        self.row = smoothed(self.row, seconds / rows)
        self.token = smoothed(self.token, seconds / expected)

    def predicted(self, seconds: float) -> None:
        """If `seconds` is less than the average step time, lower all averages by the same factor.
        `seconds` is the newly predicted duration of a step without long prompts.
        """
        if seconds < self.step:
            ratio = smoothed(self.step, seconds) / self.step
            self.step *= ratio
            self.row *= ratio
            self.token *= ratio


def smoothed(known: float, seen: float) -> float:
    """Return the average `known`, updated with the new time `seen`. A slower step has less weight,
    because the first steps and disturbed steps are slow for reasons other than their load.
    """
    if not known:
        return seen
    return known + (FASTER_WEIGHT if seen < known else SLOWER_WEIGHT) * min(seen - known, known)


class CostModel:
    """Predicts seconds = step + token * tokens + key * attended + session * sessions, where no term
    is below 0.

    The terms are fitted by least squares of the relative error, with exponential forgetting. The
    equation of each step is divided by the measured seconds of the step. Therefore a disturbed
    step, which is much too slow, has hardly any weight, and the model learns a new kind of step at
    once. With relative errors alone, predictions would be too low, and would adapt too slowly when
    the machine slows down. Therefore each surprise (the relative error of a prediction) also scales
    the whole model by the factor 1 + DRIFT_WEIGHT x surprise.
    """

    error: float
    """The smoothed relative error of predictions: |seconds - predicted| / max(seconds, predicted).
    A step is predicted before the model learns from it. The error is 0 for the first WARM_UP_STEPS
    steps."""

    def __init__(self) -> None:
        self.error = 0.0
        self._steps = 0
        self._gram = np.zeros((4, 4))  # X'X of the rows (1, tokens, attended, sessions) / seconds
        self._sum = np.zeros(4)  # X'1: the best model gives 1 for every row
        self._terms = (0.0, 0.0, 0.0, 0.0)  # seconds per step, token, key and session

    def predict(self, load: StepLoad) -> float:
        """Predict the seconds that a step with this load takes. Returns 0 before the model has
        learned from any step.
        """
        step, token, key, session = self._terms
        return step + token * load.tokens + key * load.attended + session * load.sessions

    def marginal(self, load: StepLoad) -> float:
        """Predict the seconds that this load adds to a step."""
        return self.predict(load) - self._terms[0]

    def learn(self, load: StepLoad, seconds: float) -> None:
        """Learn that a step with this load took `seconds`."""
        seconds = max(seconds, 1e-9)  # with a coarse clock a step may take 0 seconds
        predicted = self.predict(load)
        surprise = (seconds - predicted) / max(seconds, predicted)  # -1..1
        drift = 1.0
        if self._steps >= WARM_UP_STEPS:
            drift += DRIFT_WEIGHT * surprise
            judged = min(self._steps - WARM_UP_STEPS + 1, HORIZON)
            self.error += (abs(surprise) - self.error) / judged
        self._steps += 1
        self._remember(load, seconds, drift)
        warming_up = self._steps <= WARM_UP_STEPS
        if warming_up or self._steps % REFIT_STEPS == 0 or abs(surprise) > 0.5:
            self._terms = self._fit()

    def tokens_within(self, seconds: float, base: StepLoad, keys: int, most: int) -> int:
        """Return how many tokens of another session, at most `most`, can be added to a step of load
        `base` if the step may take `seconds`. The session has `keys` cached tokens. Returns 0
        before the model has learned from any step.
        """
        if not self._steps:
            return 0

        def added(tokens: int) -> float:
            return self.predict(base + StepLoad.chunk(tokens, keys))

        return bisect_right(range(1, most + 1), seconds, key=added)

    def _remember(self, load: StepLoad, seconds: float, drift: float) -> None:
        """Add a step to the equations of the least-squares fit. Earlier steps decay, and their
        seconds are multiplied by `drift`, the assumed change of the machine's speed.
        """
        row = np.array([1.0, load.tokens, load.attended, load.sessions]) / seconds
        keep = 1 - 1 / HORIZON
        self._gram = self._gram * (keep / drift**2) + row[:, None] * row
        self._sum = self._sum * (keep / drift) + row

    def _fit(self) -> tuple[float, float, float, float]:
        """Return the terms that solve the non-negative least-squares problem exactly.

        In the solution, some of the 4 terms are 0, and the other terms solve the normal equations
        that contain only these terms. Therefore the solutions for all 16 subsets of terms are
        computed at once. For each subset, the terms outside it are fixed at 0, and the normal
        equations of the terms inside it are solved. The best solution without a negative term is
        used. The ridge keeps all 16 equation systems well conditioned, and the terms are scaled to
        similar sizes.
        """
        scale = np.maximum(np.sqrt(self._gram.diagonal()), MIN_SCALE)  # [4]
        gram = self._gram / scale / scale[:, None] + RIDGE  # [4, 4]
        target = self._sum / scale  # [4]
        systems, targets = gram * BOTH_ACTIVE + INACTIVE, ACTIVE * target
        solutions = np.linalg.solve(systems, targets[:, :, None])[:, :, 0]  # [16, 4]
        allowed = (solutions >= 0).all(axis=1)
        explained = np.where(allowed, solutions @ target, -1.0)  # [16] sums of squares
        step, token, key, session = (solutions[explained.argmax()] / scale).tolist()
        return step, token, key, session
