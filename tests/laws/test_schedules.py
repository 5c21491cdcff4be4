"""No schedule of faults changes, loses or repeats a token; without any one of the rules, some
schedules do.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandem.orchestrator.links import balanced
from tests.laws.relayed import FENCES, World

SCHEDULES = range(300)


def wrong(fences: frozenset[str]) -> Iterator[int]:
    """Return the seeds of the schedules that go wrong."""
    return (seed for seed in SCHEDULES if not World(seed, fences).run())


def test_no_schedule_of_faults_changes_loses_or_repeats_a_token() -> None:
    assert list(wrong(FENCES)) == []


def test_nor_what_is_told_of_a_prompt() -> None:
    assert [seed for seed in range(50) if not World(seed, telling=True).run()] == []


@pytest.mark.usefixtures("impatient")
def test_nor_does_one_with_drafters_that_are_left_alone() -> None:
    assert list(wrong(FENCES)) == []


# The rule that a late `close` spares a session which was opened again matters only for links
# that linger longer.
@pytest.mark.parametrize("fence", sorted(FENCES - {"close"}))
def test_without_a_fence_the_same_faults_do(fence: str) -> None:
    """The simulation can fail: it does once the verifier drops one half of its rule."""
    assert next(wrong(FENCES - {fence}), None) is not None


def test_without_groups_of_verifiers_a_text_does_leave_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(balanced, "in_group", lambda group, groups: groups.keys())
    assert next(wrong(FENCES), None) is not None
