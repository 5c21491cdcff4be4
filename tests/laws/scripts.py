"""Every way that chance may go: what a run does with each, and how probable that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TypeVar

Result = TypeVar("Result")


class Script:
    """Chance that is told what to do, and then takes what comes first."""

    def __init__(self, told: Sequence[int]) -> None:
        self.taken: list[int] = []
        self.weights: list[list[float]] = []
        self._told = told

    def choose(self, weights: Sequence[float]) -> int:
        """An index, with a probability of its weight's share."""
        step = len(self.taken)
        possible = [index for index, weight in enumerate(weights) if weight > 0]
        self.taken.append(self._told[step] if step < len(self._told) else possible[0])
        self.weights.append(list(weights))
        return self.taken[-1]

    @property
    def probability(self) -> float:
        """Of all that was taken."""
        pairs = zip(self.taken, self.weights, strict=True)
        return prod(weights[index] / sum(weights) for index, weights in pairs)

    def following(self) -> list[int] | None:
        """What to tell the next one; None if this was the last."""
        for step in reversed(range(len(self.taken))):
            for index in range(self.taken[step] + 1, len(self.weights[step])):
                if self.weights[step][index] > 0:
                    return [*self.taken[:step], index]
        return None


def outcomes(run: Callable[[Script], Result]) -> Iterator[tuple[Result, float]]:
    """Every result and its probability."""
    told: list[int] | None = []
    while told is not None:
        script = Script(told)
        result = run(script)
        yield result, script.probability
        told = script.following()
