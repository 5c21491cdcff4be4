"""A replica is removed when it is gone, and not because a lookup missed it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.orchestrator.fleet.presence import MISSES, Presence


def test_an_address_that_is_found_is_there_at_once() -> None:
    presence = Presence()
    assert presence.after(["a:1"]) == ("a:1",)
    assert presence.after(["b:1", "a:1"]) == ("b:1", "a:1")


def test_an_address_is_gone_after_it_was_missing_so_many_times_in_a_row() -> None:
    presence = Presence()
    presence.after(["a:1", "b:1"])
    for _ in range(MISSES - 1):
        assert presence.after(["a:1"]) == ("a:1", "b:1")
    assert presence.after(["a:1"]) == ("a:1",)


@given(st.lists(st.sets(st.sampled_from("abcd")), min_size=1, max_size=40))
def test_what_is_found_now_and_then_never_leaves(lookups: list[set[str]]) -> None:
    presence, since = Presence(), dict[str, int]()
    for number, found in enumerate(lookups):
        since |= dict.fromkeys(found, number)
        there = set(presence.after(sorted(found)))
        assert there == {each for each, last in since.items() if number - last < MISSES}
