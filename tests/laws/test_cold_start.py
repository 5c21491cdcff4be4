"""In simulated time, the first request is drafted as well as the hundredth."""

from __future__ import annotations

from statistics import fmean

import pytest

from tandem.benchmarks.goodput.policy import TANDEM
from tandem.benchmarks.goodput.simulation import Simulation
from tandem.benchmarks.goodput.world import TARGETS, Skill, World, steady
from tandem.engine.schedule.cost import StepLoad

PERFECT = Skill(2000.0, 1.0)
COLD_PASSES, COLD_SECONDS = 8, 0.3


class ColdSimulation(Simulation):
    """A simulation in which the drafter's first passes take much longer than all others."""

    def __init__(self, world: World) -> None:
        super().__init__(world, TANDEM, seed=1)
        self._passes = 0

    def _draft_seconds(self, load: StepLoad) -> float:
        self._passes += 1
        seconds = super()._draft_seconds(load)
        return seconds + (COLD_SECONDS if self._passes <= COLD_PASSES else 0.0)


@pytest.mark.parametrize("target", ["processor", "memory-bound"])
def test_of_the_first_request_as_much_is_accepted_as_of_the_hundredth(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.benchmarks.goodput.world.STEPS", 1800)
    monkeypatch.setattr("tandem.benchmarks.goodput.simulation.ANSWER", (42, 42))
    simulation = ColdSimulation(steady(target, 2, 1, (PERFECT,)))
    simulation.run()
    accepted = [simulation.accepted[number] for number in range(1, 101)]
    assert accepted[0] >= 0.9 * fmean(accepted[90:]) > 25


def test_what_a_row_costs_is_known_before_the_first_request() -> None:
    """If the price counted the slow first passes, only nearly certain proposals would get rows."""
    simulation = ColdSimulation(steady("processor", 2, 1))
    simulation._warm_up()
    cost, curve = simulation._verifier.costs.model, TARGETS["processor"]
    for rows in (1, 8, 32):
        assert cost.predict(StepLoad.chunk(rows, 0)) == pytest.approx(
            curve.seconds(StepLoad.chunk(rows, 0)), rel=0.3
        )
