"""No schedule of faults changes, loses or repeats a token, and without any of the rules some do."""

from __future__ import annotations

import pytest

from tandem.orchestrator.workers import balanced
from tests.laws.relayed import FENCES, wrong

SCHEDULES = 500


def test_no_schedule_of_faults_changes_loses_or_repeats_a_token() -> None:
    assert wrong(FENCES, SCHEDULES) == 0


@pytest.mark.usefixtures("impatient")
def test_nor_does_one_with_drafters_that_are_left_alone() -> None:
    assert wrong(FENCES, SCHEDULES) == 0


@pytest.mark.parametrize("fence", sorted(FENCES))
def test_without_a_fence_the_same_faults_do(fence: str) -> None:
    """The model above can fail: it does as soon as the verifier forgets one half of its rule."""
    assert wrong(FENCES - {fence}, SCHEDULES) > 0


def test_without_groups_of_verifiers_a_text_does_leave_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(balanced, "of_group", lambda group, groups: groups.keys())
    assert wrong(FENCES, SCHEDULES) > 0
