"""A replica is removed when it is gone, but not when a lookup missed it. The counts of a removed
drafter are forgotten.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.orchestrator.fleet.discovery import REMOVAL_THRESHOLD, AddressHysteresis
from tandem.orchestrator.fleet.membership import Acceptance


@given(st.lists(st.sets(st.sampled_from("abcd")), min_size=1, max_size=40))
def test_an_address_is_there_until_it_was_missing_so_many_times_in_a_row(
    lookups: list[set[str]],
) -> None:
    hysteresis, since = AddressHysteresis(), dict[str, int]()
    for number, found in enumerate(lookups):
        since |= dict.fromkeys(found, number)
        there = set(hysteresis.update(sorted(found)))
        assert there == {each for each, last in since.items() if number - last < REMOVAL_THRESHOLD}


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
