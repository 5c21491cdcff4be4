"""What rounds cost is told apart: a slower machine from longer drafts, a node from what it is said
to be.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.costs import STEEPEST, Costs
from orchestrator.learning import Outcome

CROWD, TOLD = 4, 0.001


def plain(pace: float = 1.0) -> Outcome:
    """A round without a draft."""
    return Outcome(0, 0, 0.0, 0, False, 0.0, 0.0, 0.02 * pace, TOLD * pace)


def drafted(nodes: int, pace: float = 1.0, steepness: float = 1.0) -> Outcome:
    """A round with one, in a crowd whose drafts are all of this size."""
    verify = 0.02 + nodes * CROWD * TOLD * steepness
    return Outcome(4, nodes, 2.0, 2, True, 0.01 * pace, 0.008 * pace, verify * pace, TOLD * pace)


def see(costs: Costs, outcome: Outcome, rounds: int, usual: bool = True) -> None:
    """So many rounds of everyone in the crowd."""
    for _ in range(rounds * CROWD):
        costs.heard(outcome, CROWD)
        costs.saw(outcome, CROWD, usual, tried=not usual)


def acquainted(nodes: int, steepness: float = 1.0) -> Costs:
    """What a worker's first lessons teach."""
    costs = Costs()
    see(costs, plain(), 4, usual=False)
    see(costs, drafted(nodes, 1.0, steepness), 12, usual=False)
    return costs


@pytest.mark.parametrize("steepness", [1.0, 1.5, STEEPEST])
def test_a_node_costs_what_it_was_seen_to_cost(steepness: float) -> None:
    costs = acquainted(8, steepness)
    assert costs.node_seconds(CROWD) == pytest.approx(steepness * TOLD * CROWD, rel=0.01)


def test_what_a_node_may_cost_has_bounds() -> None:
    assert acquainted(8, 10 * STEEPEST).steepness == STEEPEST
    assert acquainted(8, 0.1).steepness == 1


@pytest.mark.parametrize("sizes", [(4, 16), (16, 4)])
@pytest.mark.parametrize("steepness", [0.0, 0.3, 1.0, 1.8, 3.0])
def test_longer_and_shorter_drafts_are_no_other_machine(
    steepness: float, sizes: tuple[int, int]
) -> None:
    before, after = sizes
    costs = acquainted(before, steepness)
    see(costs, drafted(after, 1.0, steepness), 200)
    expected = 0.03 + after * CROWD * TOLD * steepness
    assert costs.drafted.value == pytest.approx(expected, rel=0.15)
    assert costs.plain.value == pytest.approx(0.02, rel=0.1)


def test_a_call_that_hung_in_a_trial_is_not_what_nodes_cost() -> None:
    costs = acquainted(8, 1.3)
    known = costs.steepness
    hung = replace(drafted(8, 1.0, 1.3), verify_seconds=30.0)
    costs.saw(hung, CROWD, usual=False, tried=True)
    assert costs.steepness == pytest.approx(known, rel=0.1)


def test_a_slower_machine_is_slower_in_what_is_not_done_too() -> None:
    drafting, resting = acquainted(8), acquainted(8)
    before = drafting.plain.value, resting.drafted.value
    see(drafting, drafted(8, pace=2.0), 300)
    see(resting, plain(pace=2.0), 300)
    assert drafting.plain.value == pytest.approx(2 * before[0], rel=0.1)
    assert resting.drafted.value == pytest.approx(2 * before[1], rel=0.1)


def test_a_trial_changes_only_what_is_tried() -> None:
    costs = acquainted(8)
    before = costs.drafted.value
    see(costs, plain(pace=0.5), 4, usual=False)
    assert costs.plain.value < 0.02
    assert costs.drafted.value == before
