"""How much to draft: the configured shape, never more than can be used, nothing while the drafter
rests.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.learning import Outcome
from orchestrator.policy import LONGEST_REST, Policy
from protos.types import MAX_LEVELS, MAX_NODES, DraftShape, Schedule

levels = st.integers(1, MAX_LEVELS)
shapes = st.builds(DraftShape, levels, st.integers(1, 8), st.integers(1, MAX_NODES))


def rested(policy: Policy) -> int:
    """Rounds until the next draft."""
    return next(rounds for rounds in range(10 * LONGEST_REST) if policy.next(1000).levels)


@given(shapes, st.integers(MAX_LEVELS + 1, 10_000))
def test_far_from_the_end_a_tree_is_asked_for_as_configured(
    shape: DraftShape, remaining: int
) -> None:
    asked = Policy.of(shape).next(remaining)
    assert (asked.levels, asked.branches) == (shape.levels, shape.branches)
    assert asked.nodes == (shape.nodes if shape.branches > 1 else min(shape.nodes, shape.levels))


@given(shapes, st.integers(0, 2 * MAX_LEVELS))
def test_no_more_is_drafted_than_can_be_emitted_beside_the_verifiers_own_token(
    shape: DraftShape, remaining: int
) -> None:
    asked = Policy.of(shape).next(remaining)
    assert asked.levels == max(0, min(shape.levels, remaining - 1))
    assert asked.nodes <= shape.nodes
    assert asked.nodes <= asked.levels or asked.branches > 1, "a chain has one node on a level"


@given(levels, st.integers(2, 2 * MAX_LEVELS))
def test_a_chain_gets_a_node_for_every_level(length: int, remaining: int) -> None:
    depth = min(length, remaining - 1)
    assert Policy.of(DraftShape.chain(length)).next(remaining) == DraftShape.chain(depth)


@pytest.mark.parametrize("remaining", [0, 1, 2, 100])
def test_no_levels_never_draft(remaining: int) -> None:
    policy = Policy.of(DraftShape(0, 4, 16))
    assert not policy.wants_draft
    assert policy.next(remaining).levels == 0


def test_each_failure_in_a_row_doubles_the_rest_up_to_the_longest() -> None:
    policy, rests = Policy.of(DraftShape.chain(4)), []
    for _ in range(9):
        policy.failed()
        rests.append(rested(policy))
    assert rests == [1, 2, 4, 8, 16, 32, 32, 32, 32]
    assert max(rests) == LONGEST_REST


def test_an_answer_ends_the_row_of_failures() -> None:
    policy = Policy.of(DraftShape.chain(4))
    for _ in range(4):
        policy.failed()
    assert rested(policy) == 8
    policy.drafted()
    policy.failed()
    assert rested(policy) == 1


def test_a_drafter_that_never_failed_never_rests() -> None:
    policy = Policy.of(DraftShape.chain(4))
    for _ in range(50):
        assert policy.next(1000).levels == 4
        policy.drafted()


def test_a_resting_drafter_is_still_wanted() -> None:
    policy = Policy.of(DraftShape.chain(4))
    policy.failed()
    assert policy.wants_draft
    assert policy.next(1000).levels == 0


def seen(levels: int, accepted: int) -> Outcome:
    """What came of a draft."""
    return Outcome(levels, levels, 0.0, accepted, True, 0.01, 0.008, 0.02, 0.0)


def test_the_heuristic_adds_two_to_a_draft_that_stood_and_takes_one_from_another() -> None:
    policy = Policy.of(DraftShape.chain(5), Schedule.HEURISTIC)
    asked = []
    for accepted in (5, 2, 6, 0):
        asked.append(policy.next(100).levels)
        policy.amount.saw(seen(asked[-1], accepted))
    assert [*asked, policy.next(100).levels] == [5, 7, 6, 8, 7]


def test_the_heuristic_learns_nothing_from_no_draft_and_keeps_the_nodes_of_a_level() -> None:
    policy = Policy.of(DraftShape(4, 4, 16), Schedule.HEURISTIC)
    for _ in range(20):
        policy.amount.saw(seen(0, 0))
    assert policy.next(100) == DraftShape(4, 4, 16)
    policy.amount.saw(seen(4, 4))
    assert policy.next(100) == DraftShape(6, 4, 24)
    for _ in range(MAX_LEVELS):
        policy.amount.saw(seen(4, 4))
    assert policy.next(100) == DraftShape(16, 4, MAX_NODES), "as far as there may be nodes"


def test_the_heuristic_never_asks_for_a_draft_without_nodes() -> None:
    policy = Policy.of(DraftShape(8, 2, 4), Schedule.HEURISTIC)
    for _ in range(20):
        policy.amount.saw(seen(2, 0))
    assert policy.next(100) == DraftShape(1, 2, 1)
