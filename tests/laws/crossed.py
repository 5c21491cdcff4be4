"""Schedules of faults for real crossings, with simulated services, links and time.

Links break and half-open ones linger, services restart, evict and ask to wait, openings arrive late
and twice, drafters lie, guesses are lost and repeated, workers die and live on for a while.

    python -m tests.laws.crossed [schedules]     how many go wrong, by which fence is left out
"""

from __future__ import annotations

import random
import sys
from itertools import count
from logging import CRITICAL

import structlog

from orchestrator.rounds.crossing import Crossing, Services
from orchestrator.rounds.generation import Generation
from orchestrator.workers.pool import TURNS
from protos.types import DraftShape, Rule, SamplingParams
from tests.laws.peers import FENCES, Drafter, Verifier, follows
from tests.laws.wires import Clock, Link

PROMPT, LENGTH, SESSION = (1, 2, 3), 40, b"s" * 16
SHAPES = DraftShape(0), *[DraftShape(8, 2, 32)] * 3


def alone() -> list[int]:
    """What the target decodes by itself."""
    text = list(PROMPT)
    while len(text) < len(PROMPT) + LENGTH:
        text.append(follows(text))
    return text[len(PROMPT) :]


class Worker:
    """One worker's part of a request: two links, and a crossing whose steps are read now and
    then.
    """

    def __init__(self, world: World) -> None:
        self.world, self.links = world, (Link(world.verifier), Link(world.drafter))
        generation = Generation(
            SESSION,
            PROMPT,
            SamplingParams(rule=world.rule),
            LENGTH,
            completion=list(world.text),
            turn=world.turn,
        )
        services = Services(*self.links, world.clock, count(1))
        self.crossing = Crossing(generation, world.shape, "", services, lambda: None)
        self.read()

    def read(self) -> None:
        """The front end, if it is still there, takes what there is."""
        while self.crossing.steps:
            tokens = self.crossing.take().tokens
            if self is self.world.worker:
                self.world.text += tokens
        pause = self.world.rng.expovariate(1 if self.world.slow else 20)
        self.alarm = self.world.clock.later(pause, self.read)

    def die(self) -> None:
        """It learns that nobody wants it any more."""
        self.alarm.cancel()
        self.crossing.end()


class World:
    """One request under one schedule of faults."""

    def __init__(
        self, seed: int, fences: frozenset[str] = FENCES, evil: float = 0.1, faults: int = 12
    ) -> None:
        self.rng, self.clock = random.Random(seed), Clock()
        self.verifier = Verifier(self.clock, self.rng, evil)
        self.drafter = Drafter(self.clock, self.rng, evil)
        self.verifier.fences = self.drafter.fences = fences
        self.rule = self.rng.choice((Rule.MATCH, Rule.MATCH, Rule.REJECT))
        self.shape = self.rng.choice(SHAPES)
        self.slow = self.rng.random() < 0.2
        self.turn, self.faults = 0, 0
        self.text: list[int] = []
        self.worker: Worker | None = None
        self.worker = Worker(self)
        for _ in range(self.rng.randrange(faults + 1)):
            self.clock.later(8 * self.rng.random(), self.fault)

    def fault(self) -> None:
        """Something breaks."""
        assert self.worker
        self.faults += 1
        kind = self.rng.randrange(7)
        if kind < 2:
            (self.verifier, self.drafter)[kind].restart()
        elif kind < 4:
            (self.verifier, self.drafter)[kind - 2].evict()
        elif kind < 6:
            self.worker.links[kind - 4].lose()
        else:  # the worker is lost, and may live on for a while
            self.clock.later(4 * self.rng.random(), self.worker.die)
            self.turn += TURNS
            self.worker = Worker(self)

    def run(self) -> bool:
        """Whether the text is the target's own, whole, and in time."""
        assert self.worker
        finished = self.clock.pass_until(lambda: len(self.text) >= LENGTH)
        return finished and self.text == alone()


def wrong(fences: frozenset[str], schedules: int) -> int:
    """How many of so many schedules go wrong."""
    return sum(not World(seed, fences).run() for seed in range(schedules))


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    schedules = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    for fences in (FENCES, FENCES - {"turn"}, FENCES - {"newest"}):
        print(f"{sorted(fences)}: {wrong(fences, schedules)} wrong of {schedules}")
