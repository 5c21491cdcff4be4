"""A replica is removed when it is gone, and not because a lookup missed it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.orchestrator.fleet.presence import MISSES, Presence


@given(st.lists(st.sets(st.sampled_from("abcd")), min_size=1, max_size=40))
def test_an_address_is_there_until_it_was_missing_so_many_times_in_a_row(
    lookups: list[set[str]],
) -> None:
    presence, since = Presence(), dict[str, int]()
    for number, found in enumerate(lookups):
        since |= dict.fromkeys(found, number)
        there = set(presence.after(sorted(found)))
        assert there == {each for each, last in since.items() if number - last < MISSES}
