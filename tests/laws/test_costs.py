"""What rounds cost, with drafts and without, and of that the nodes and the prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.costs import FEW, Costs
from orchestrator.learning import Outcome

CROWD, TOLD = 4, 0.001


def plain(pace: float = 1.0) -> Outcome:
    """A round without a draft."""
    return Outcome(0, 0, 0.0, 0, False, 0.0, 0.0, 0.02 * pace, TOLD * pace)


def drafted(nodes: int, pace: float = 1.0, steepness: float = 1.0) -> Outcome:
    """A round with one, in a crowd whose drafts are all of this size."""
    verify = 0.02 + nodes * CROWD * TOLD * steepness
    return Outcome(4, nodes, 2.0, 2, True, 0.01 * pace, 0.008 * pace, verify * pace, TOLD * pace)


def see(costs: Costs, outcome: Outcome, rounds: int, tried: bool = False) -> None:
    """So many rounds of everyone in the crowd."""
    for _ in range(rounds * CROWD):
        costs.heard(outcome, CROWD)
        costs.saw(outcome, CROWD, tried)


def acquainted(nodes: int, steepness: float = 1.0) -> Costs:
    """What a worker's first lessons teach."""
    costs = Costs()
    see(costs, plain(), 4, tried=True)
    see(costs, drafted(nodes, 1.0, steepness), 12, tried=True)
    return costs


@pytest.mark.parametrize("steepness", [1.0, 1.5, 5.0])
def test_a_node_costs_what_it_was_seen_to_cost(steepness: float) -> None:
    costs = acquainted(8, steepness)
    assert costs.node_seconds(CROWD) == pytest.approx(steepness * TOLD * CROWD, rel=0.01)


def test_what_the_verifier_says_is_the_least_that_a_node_costs() -> None:
    assert acquainted(8, 0.1).node_seconds(CROWD) == TOLD * CROWD


def test_what_drafting_adds_is_not_all_for_the_sake_of_a_few_nodes() -> None:
    costs = Costs()
    see(costs, plain(), 4, tried=True)
    see(costs, replace(drafted(1), verify_seconds=0.1), 4, tried=True)
    assert costs.node_seconds(CROWD) == pytest.approx(0.08 / FEW)


def test_a_call_that_hung_in_a_trial_is_not_what_nodes_cost() -> None:
    costs = acquainted(8, 1.3)
    known = costs.node_seconds(CROWD)
    hung = replace(drafted(8, 1.0, 1.3), verify_seconds=30.0)
    costs.saw(hung, CROWD, tried=True)
    assert costs.node_seconds(CROWD) == pytest.approx(known, rel=0.2)


def test_what_is_not_done_any_more_is_learned_anew_within_a_few_rounds() -> None:
    """A machine that became slower meanwhile is believed soon, not only at last."""
    drafting, resting = acquainted(8), acquainted(8)
    before = drafting.plain.value, resting.drafted.value
    see(drafting, drafted(8, pace=2.0), 300)
    see(resting, plain(pace=2.0), 300)
    assert (drafting.plain.value, resting.drafted.value) == pytest.approx(before)
    see(drafting, plain(pace=2.0), 12)
    assert drafting.plain.value == pytest.approx(2 * before[0], rel=0.15)


def test_a_trial_changes_only_what_is_tried() -> None:
    costs = acquainted(8)
    before = costs.drafted.value
    see(costs, plain(pace=0.5), 4, tried=True)
    assert costs.plain.value < 0.02
    assert costs.drafted.value == before


def test_what_a_first_draft_takes_more_than_others_is_for_the_prompt() -> None:
    costs = acquainted(8)
    for _ in range(10 * CROWD):
        costs.opened(replace(drafted(8), propose_seconds=0.04, opened=True), CROWD)
    assert costs.opening.value == pytest.approx(0.03)
    assert costs.drafted.value == acquainted(8).drafted.value


def test_prompts_that_become_long_are_noticed() -> None:
    """Though reading the first ones took no time at all."""
    costs = acquainted(8)
    for propose, rounds in ((0.01, 20), (1.01, 60)):
        for _ in range(rounds * CROWD):
            costs.opened(replace(drafted(8), propose_seconds=propose, opened=True), CROWD)
    assert costs.opening.value == pytest.approx(1.0, rel=0.1)
