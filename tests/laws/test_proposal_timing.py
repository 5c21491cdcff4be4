"""When a step with a single session waits for proposals: while they are punctual and worth their
time.
"""

from __future__ import annotations

import pytest

from tandem.verifier_service.proposal_timing import REMEMBERED, TOLERANCE, ProposalTiming

STEP = 0.04


def learned(lag: float, gap: float = 0.003) -> ProposalTiming:
    """Return what is learned from a commit that no proposal foresaw and from two later
    proposals.
    """
    times = ProposalTiming()
    times.commit_sent(10, 1.0, predicted=False)
    times.proposal_arrived(10, 1.0 + lag)
    times.proposal_arrived(10, 1.0 + lag + gap)
    return times


def test_nobody_waits_for_a_drafter_that_was_never_heard() -> None:
    times = ProposalTiming()
    times.commit_sent(10, 1.0, predicted=False)
    assert times.wait_seconds(1.0, STEP, 0.0, 1.0) == 0.0


def test_the_first_proposal_is_waited_for_a_little_longer_than_it_usually_takes() -> None:
    times = learned(0.005)
    times.commit_sent(11, 2.0, predicted=False)
    assert times.wait_seconds(2.0, STEP, 0.0, 1.0) == pytest.approx(TOLERANCE * 0.005)
    assert times.wait_seconds(2.0 + TOLERANCE * 0.005, STEP, 0.0, 1.0) <= 1e-9


def test_a_drafter_so_far_away_that_the_longest_wait_does_not_pay_is_not_waited_for() -> None:
    times = learned(1.01 * STEP / TOLERANCE)
    times.commit_sent(11, 2.0, predicted=False)
    assert times.wait_seconds(2.0, STEP, 0.0, 1.0) == 0.0


def test_another_level_is_waited_for_while_it_adds_more_than_its_time_costs() -> None:
    times = learned(0.005, gap=0.003)
    times.commit_sent(11, 2.0, predicted=False)
    times.proposal_arrived(11, 2.005)
    assert times.wait_seconds(2.005, STEP, 0.9, 0.6) > 0.0
    assert times.wait_seconds(2.005, STEP, 3.0, 0.2) <= 0.0
    assert times.wait_seconds(2.005, 0.003, 0.9, 0.6) <= 0.0, (
        "a fast step is worth more than a level"
    )


def test_each_proposal_after_a_text_is_waited_for_by_itself() -> None:
    times = learned(0.005, gap=0.003)
    times.commit_sent(11, 2.0, predicted=False)
    times.proposal_arrived(11, 2.005)
    assert times.answered
    assert times.wait_seconds(2.006, STEP, 0.9, 0.6) == pytest.approx(
        2.005 + TOLERANCE * 0.003 - 2.006
    )
    assert times.wait_seconds(2.2, STEP, 0.9, 0.6) <= 0.0, "it should have come"
    times.commit_sent(12, 2.1, predicted=False)
    assert not times.answered


def test_an_answer_that_adds_nothing_is_in_time_and_after_it_no_other_is_waited_for() -> None:
    times = learned(0.005)
    times.commit_sent(11, 2.0, predicted=False)
    times.proposal_arrived(11, 2.006, added=False)
    assert times.lag > 0.005 and times.in_time
    assert times.wait_seconds(2.006, STEP, 0.9, 0.6) <= 0.0
    times.proposal_arrived(11, 2.3)
    assert times.gap == pytest.approx(0.003), "from one that adds nodes to the next one"
    times.commit_sent(12, 3.0, predicted=False)
    assert times.wait_seconds(3.0, STEP, 0.0, 1.0) > 0.0


def test_a_drafter_that_did_not_come_in_time_is_not_waited_for_until_it_does() -> None:
    times = learned(0.005)
    times.commit_sent(11, 2.0, predicted=False)
    times.proposal_arrived(11, 2.1)
    assert not times.in_time
    for length in range(12, 40):
        times.commit_sent(length, float(length), predicted=False)
        times.proposal_arrived(length, length + 0.005)
    assert times.in_time
    times.commit_sent(40, 40.0, predicted=False)
    assert times.wait_seconds(40.0, STEP, 0.0, 1.0) > 0.0


def test_commits_that_a_proposal_foresaw_tell_nothing_of_how_far_the_drafter_is() -> None:
    times = learned(0.005)
    times.commit_sent(11, 2.0, predicted=True)
    times.proposal_arrived(11, 2.5)
    assert times.lag == pytest.approx(0.005)


def test_commits_without_proposals_are_forgotten() -> None:
    times = ProposalTiming()
    for length in range(10 * REMEMBERED):
        times.commit_sent(length, 1.0, predicted=False)
    assert len(times._commits) <= REMEMBERED


def test_a_drafter_that_says_nothing_is_waited_for_once() -> None:
    times = learned(0.005)
    times.commit_sent(11, 2.0, predicted=False)
    assert times.wait_seconds(2.0, STEP, 0.0, 1.0) > 0.0
    times.commit_sent(12, 2.0 + STEP, predicted=False)
    assert times.wait_seconds(2.0 + STEP, STEP, 0.0, 1.0) == 0.0
