"""Recent answers: only those of the scope, only the newest, and never more than fit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.verifier_service.answers import MAX_FULL_SCOPES, RecentAnswers
from tandem.verifier_service.suffix_drafts import BOUNDARY

answers = st.lists(st.integers(0, 9), max_size=12)
scopes = st.integers(0, 2 * MAX_FULL_SCOPES).map(lambda number: number.to_bytes(2, "big"))


@given(st.lists(st.tuples(scopes, answers)), st.integers(0, 20))
def test_a_scope_has_its_own_newest_answers_alone(
    told: list[tuple[bytes, list[int]]], room: int
) -> None:
    recent, said = RecentAnswers(room), dict[bytes, list[int]]()
    for scope, answer in told:
        recent.remember(scope, answer)
        said.setdefault(scope, []).extend((*answer, BOUNDARY))
        assert recent.of(scope).tolist() == (said[scope][-room:] if room else [])
    for scope, each in said.items():
        found = recent.of(scope).tolist()
        assert not found or found == each[-room:], "all that there is room for, or forgotten"


@given(st.lists(st.tuples(scopes, answers), min_size=60, max_size=120), st.integers(1, 8))
def test_all_scopes_together_have_a_bound_and_the_longest_unused_is_forgotten(
    told: list[tuple[bytes, list[int]]], room: int
) -> None:
    recent, used = RecentAnswers(room), list[bytes]()
    for scope, answer in told:
        recent.remember(scope, answer)
        used = [each for each in used if each != scope] + [scope]
        kept = sum(array.nbytes for array in recent._scopes.values())
        assert kept == 4 * len(recent) <= 4 * MAX_FULL_SCOPES * room
        assert list(recent._scopes) == used[-len(recent._scopes) :]
