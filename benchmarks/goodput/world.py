"""The simulated worlds: how good proposals are, what steps cost, how far apart the services are,
how many users ask, and what goes wrong with the drafter.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tandem.engine.schedule.cost import StepLoad

STEPS = 600  # a simulation lasts STEPS / (1 + sessions / CROWD) steps of plain decoding
CROWD = 8  # number of sessions at which a simulation lasts STEPS / 2 steps
START = 0.4  # share of the simulated time that is excluded as warm-up
LOST = 0.1  # ratio of true to claimed probability while a drafter's proposals are useless

Phases = tuple[tuple[float, float], ...]
"""Pairs of a share of the simulated time and the value that holds from then on."""


@dataclass(frozen=True, slots=True)
class Skill:
    """How well a drafter predicts a text. Over all positions, the probability that the drafter
    claims for its likeliest proposal has the distribution Beta(`alpha`, `beta`). The true
    probability is `honesty` times the claimed probability. If `alternate` is not 0, the text is
    divided into runs of `alternate` tokens, and the factor is `LOST` instead of `honesty` in every
    second run.
    """

    alpha: float
    beta: float
    honesty: float = 1.0
    alternate: int = 0


GOOD = Skill(3.0, 1.0)
UNTRAINED = Skill(3.0, 1.0, honesty=0.08)
SKILLS = {
    "good": (GOOD,),
    "bad": (Skill(1.0, 3.0),),
    "untrained": (UNTRAINED,),
    "modest": (Skill(2.0, 2.0, honesty=1.5),),
    "turning": (Skill(3.0, 1.0, alternate=60),),
    "mixed": (GOOD, UNTRAINED),
}


@dataclass(frozen=True, slots=True)
class StepCurve:
    """The duration of a step as a function of its number of rows. `milliseconds` has the duration
    for each number of rows in `rows`. Durations for other numbers of rows are interpolated and
    extrapolated linearly. Each million attended keys adds `keys` milliseconds.
    """

    rows: tuple[int, ...]
    milliseconds: tuple[float, ...]
    keys: float

    def seconds(self, load: StepLoad) -> float:
        """Return the duration of a step in seconds, without random noise."""
        right = min(max(1, bisect_left(self.rows, load.tokens)), len(self.rows) - 1)
        (before, after), (low, high) = (
            each[right - 1 : right + 1] for each in (self.rows, self.milliseconds)
        )
        layers = low + (high - low) * (load.tokens - before) / (after - before)
        return 1e-3 * (layers + 1e-6 * self.keys * load.attended)


TARGETS = {
    "memory-bound": StepCurve((1, 200, 400), (25.0, 27.0, 50.0), 2.0),
    "compute-bound": StepCurve((1, 64), (10.0, 199.0), 20.0),
    # one core, 110 M parameters; times of the linear layers (RESULTS.md), multiplied by 1.5
    "processor": StepCurve((1, 9, 17, 33, 80), (13.4, 17.3, 19.5, 36.8, 88.0), 60.0),
}
DRAFTS = {
    "memory-bound": StepCurve((1, 200, 400), (2.5, 3.0, 6.0), 1.0),
    "compute-bound": StepCurve((1, 64), (1.0, 12.0), 4.0),
    "processor": StepCurve((1, 4, 16, 80), (1.2, 1.25, 1.75, 6.0), 5.0),
    "busy": StepCurve((1, 4, 16, 80), (5.0, 5.2, 7.0, 25.0), 20.0),
}


# `contention` by the number of cores that both services share
CONTENTION = {"one core": 0.5, "two cores": 0.2}
TROUBLES: dict[str, Phases] = {
    "200 ms slower": ((0, 0), (0.45, 0.2)),
    "2 s slower": ((0, 0), (0.45, 2.0)),
    "hangs": ((0, 0), (0.45, math.inf)),
    "recovers": ((0, 0), (0.45, math.inf), (0.6, 0)),
}


@dataclass(frozen=True, slots=True)
class World:
    """The conditions of a simulation. `delay` is the network round trip between verifier and
    drafter in milliseconds. `sessions` is the number of open sessions. `slowness` is the number of
    seconds that are added to each step of the drafter; it is infinite while the drafter hangs. For
    each second that the drafter computes, the verifier loses `contention` seconds.
    """

    target: str
    delay: Phases
    sessions: Phases
    skills: tuple[Skill, ...]
    note: str = ""
    slowness: Phases = ((0.0, 0.0),)
    contention: float = 0.0
    draft: str = ""

    @property
    def name(self) -> str:
        """The name under which results of the world are reported."""
        trips, users = (
            "-".join(f"{value:g}" for _, value in each) for each in (self.delay, self.sessions)
        )
        return f"{self.target}, {trips} ms, {users} sessions" + (self.note and f", {self.note}")

    @property
    def seconds(self) -> float:
        """The duration of the simulation in seconds, with enough steps for the policy to learn."""
        most = int(max(value for _, value in self.sessions))
        load = StepLoad(most, most * 150, most)
        return STEPS / (1 + most / CROWD) * TARGETS[self.target].seconds(load)

    @property
    def start(self) -> float:
        """The seconds at the start that are excluded from the results, because the policy is still
        learning.
        """
        return START * self.seconds


def at(phases: Phases, share: float) -> float:
    """Return the value of the phase that is active after `share` of the simulated time."""
    return [value for start, value in phases if start <= share][-1]


def steady(target: str, delay: float, sessions: int, skills: tuple[Skill, ...] = (GOOD,)) -> World:
    """Make a world whose conditions do not change over time."""
    return World(target, ((0, delay),), ((0, sessions),), skills)


def worlds() -> Iterator[World]:
    """Yield all simulated worlds."""
    for each in product(TARGETS, (0, 20, 80), (1, 8, 32)):
        yield steady(*each)
    for note, target, sessions in product(list(SKILLS)[1:], TARGETS, (1, 8)):
        yield replace(steady(target, 5, sessions, SKILLS[note]), note=note)
    for cores, skill, sessions in product(CONTENTION, ("good", "bad"), (1, 8)):
        world = steady("processor", 2, sessions, SKILLS[skill])
        contention, note = CONTENTION[cores], f"{skill}, {cores}"
        yield replace(world, draft="busy", contention=contention, note=note)
    for target in TARGETS:
        for sessions in (1, 8):
            yield replace(steady(target, 0, sessions), delay=((0, 5), (0.5, 80), (0.75, 5)))
        yield replace(steady(target, 5, 0), sessions=((0, 1), (0.6, 16)))
    for (note, slowness), sessions in product(TROUBLES.items(), (1, 8)):
        yield replace(steady("processor", 5, sessions), slowness=slowness, note=note)
