"""Simulated worlds are reproducible by their seeds, and agree with arithmetic in simple cases."""

from __future__ import annotations

import pytest

from tandem.benchmarks.goodput.__main__ import rising
from tandem.benchmarks.goodput.policy import PLAIN, TANDEM, Policy
from tandem.benchmarks.goodput.simulation import HICCUP, HICCUPS, PROMPT, Simulation
from tandem.benchmarks.goodput.world import DRAFTS, GOOD, TARGETS, UNTRAINED, steady
from tandem.engine.schedule.cost import StepLoad
from tandem.protos.types import DraftShape

NEAR = steady("processor", 2, 1)
STEP = TARGETS["processor"].seconds(StepLoad.chunk(1, 3 * PROMPT))
ALONE = 1 / STEP / (1 + HICCUPS * (HICCUP - 1))  # tokens a second


def test_a_run_is_the_same_twice_and_another_with_another_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem.benchmarks.goodput.world.STEPS", 60)  # keeps the run short
    first, second, other = (Simulation(NEAR, TANDEM, seed).run() for seed in (1, 1, 2))
    assert first == second != other


def test_plain_decoding_yields_a_token_a_step() -> None:
    assert Simulation(NEAR, PLAIN, 1).run() == pytest.approx(ALONE, rel=0.05)


def test_the_policy_gains_by_good_proposals_and_loses_little_by_useless_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem.benchmarks.goodput.world.STEPS", 200)
    useless = steady("processor", 2, 1, (UNTRAINED,))
    assert Simulation(NEAR, TANDEM, 1).run() > 1.5 * ALONE
    assert Simulation(useless, TANDEM, 1).run() > 0.9 * ALONE


def test_a_chain_in_lockstep_takes_a_round_trip_a_level_and_a_step() -> None:
    """A node is accepted as often as the likeliest child is right."""
    chain = Policy("", DraftShape.chain(1), fixed=True, lockstep=True)
    keys = 3 * PROMPT
    seconds = TARGETS["processor"].seconds(StepLoad.chunk(2, keys)) + 2e-3
    seconds += DRAFTS["processor"].seconds(StepLoad.chunk(2, keys))
    usual = (1 + GOOD.alpha / (GOOD.alpha + GOOD.beta)) / seconds
    assert Simulation(NEAR, chain, 1).run() == pytest.approx(usual, rel=0.1)


def test_larger_shapes_are_run_until_one_falls_behind() -> None:
    goodputs = {"a": 2.0, "b": 3.0, "c": 1.0, "d": 9.0}
    shapes = [Policy(name) for name in goodputs]
    assert list(rising(shapes, lambda policy: goodputs[policy.name], 1.0)) == ["a", "b", "c"]
