"""What a generation in lockstep learns from each step and proposal, without a verifier."""

from __future__ import annotations

from tandem.orchestrator.rounds.lockstep import FIRST_TRIAL, Lockstep, WaitPolicy
from tandem.protos.streams import Commit
from tests.laws.test_lockstep import STEP
from tests.laws.wires import Clock


def test_a_drafter_that_comes_back_is_tried_soon_however_long_it_was_away() -> None:
    """The drafter reads the text first, so its proposals are late unless the verifier waits for
    it.
    """
    policy = WaitPolicy(delay=3 * STEP, gain=1.0, plain_seconds=STEP, drafted_seconds=STEP)
    for _ in range(1100):
        policy.no_drafter()
        policy.learn_step(STEP, Commit(0, (1,)))
    policy.proposal_missed()
    steps = 0
    while not policy.wait_seconds:
        policy.proposal_came(1.5 * STEP)
        policy.learn_step(STEP, Commit(0, (1,)))
        steps += 1
    assert steps <= 8


def test_a_first_step_which_reads_the_prompt_says_nothing_of_the_others() -> None:
    policy = WaitPolicy()
    policy.learn_step(3.0, Commit(0, (1,), epoch=7))
    assert policy == WaitPolicy()


def test_a_first_plain_step_that_hiccups_hardly_counts() -> None:
    policy = WaitPolicy()
    policy.learn_step(0.02, Commit(0, (1, 2, 3), 4))
    policy.learn_step(2.0, Commit(3, (1,)))
    assert policy.wait_seconds < 0.5


def test_proposals_that_nobody_waited_for_do_not_end_drafting_unless_they_are_far_too_late() -> (
    None
):
    policy = WaitPolicy(delay=0.8 * STEP, gain=1.0, plain_seconds=STEP, drafted_seconds=STEP)
    for _ in range(50):
        policy.proposal_came(3 * STEP)
    assert policy.wait_seconds
    for _ in range(50):
        policy.proposal_came(5 * STEP)
    assert not policy.wait_seconds


def test_time_without_a_drafter_does_not_put_the_next_trial_off() -> None:
    lockstep = Lockstep(Clock(), lambda proposal: None)
    for length in range(1, 200):
        lockstep.wait(length, False)
        lockstep.committed(Commit(length - 1, (0,)))
    assert lockstep.policy.trial_interval == FIRST_TRIAL


def test_a_proposal_of_before_the_one_that_came_in_time_counts_for_nothing() -> None:
    clock = Clock()
    lockstep = Lockstep(clock, lambda proposal: None)
    lockstep.wait(5, True)
    lockstep.wait(7, True)
    assert lockstep.proposal_came(7, 7)
    clock.time, before = 100.0, lockstep.policy.delay
    assert not lockstep.proposal_came(5, 7)
    assert lockstep.policy.delay == before
