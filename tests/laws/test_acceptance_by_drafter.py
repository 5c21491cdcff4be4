"""What is counted of each drafter is forgotten with it."""

from __future__ import annotations

from tandem.orchestrator.fleet.acceptance import Acceptance


def test_counts_are_kept_for_as_long_as_a_drafter_is_there() -> None:
    acceptance = Acceptance()
    acceptance.retain(["a", "b"])
    for drafter, verified, accepted in (("a", 4, 1), ("b", 3, 3), ("a", 2, 2), ("c", 5, 5)):
        acceptance.add(drafter, verified, accepted)
    assert (acceptance.of("a"), acceptance.of("b"), acceptance.of("c")) == ((6, 3), (3, 3), (0, 0))
    acceptance.retain(["b", "c"])
    acceptance.add("a", 1, 1)
    assert (acceptance.of("a"), acceptance.of("b")) == ((0, 0), (3, 3)), "a drains"
    acceptance.retain(["a", "b"])
    assert (acceptance.of("a"), acceptance.of("b")) == ((0, 0), (3, 3))
