"""What a verifier knows of proposals: the nodes that are still possible, likeliest first."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.schedule.trust import BORROWED, MAX_LOG, Trust
from tandem.protos import tree
from tandem.protos.streams import Proposal
from tandem.verifier_service.proposals import Proposals
from tandem.verifier_service.proposed_node import Source

Tokens = tuple[int, ...]
# log-probability of the last token given the others, by the tokens after the first text
Paths = dict[Tokens, float]

UNTIL = 1 << 20
tokens_ = st.integers(0, 2)


@st.composite
def proposed(draw: st.DrawFn) -> tuple[list[Proposal], Paths]:
    """Draw a tree after token 0 of a text, in several messages, and its paths."""
    paths: list[Tokens] = [()]
    told: Paths = {}
    proposals: list[Proposal] = []
    number = 1
    for _ in range(draw(st.integers(1, 4))):
        tokens, parents, gains, first = [], [], [], number
        for _ in range(draw(st.integers(1, 6))):
            parent = draw(st.integers(0, number - 1))
            path = (*paths[parent], draw(tokens_))
            gain = -draw(st.floats(0, 3))
            told.setdefault(path, gain)
            paths.append(path)
            tokens.append(path[-1])
            parents.append(parent)
            gains.append(gain)
            number += 1
        proposals.append(Proposal(0, tuple(tokens), tuple(parents), tuple(gains), first))
    return proposals, told


def chances_of(told: Paths) -> list[float]:
    """Return the chances of all nodes, likeliest first; siblings whose chances add up to more than
    1 are scaled down to 1.
    """
    sums: dict[Tokens, float] = defaultdict(float)
    for path, gain in told.items():
        sums[path[:-1]] += math.exp(gain)

    def chance(path: Tokens) -> float:
        parents = (path[:end] for end in range(1, len(path) + 1))
        return math.prod(math.exp(told[p]) / max(1.0, sums[p[:-1]]) for p in parents)

    return sorted(map(chance, told), reverse=True)


def known(proposals: Proposals) -> set[Tokens]:
    """Return the known paths below the root."""
    chances = list(proposals.chances())
    assert chances == sorted(chances, reverse=True)
    draft, expected = proposals.draft(len(chances))
    assert expected == pytest.approx(sum(chances))
    return {
        tuple(draft.tokens[each] for each in tree.path(draft.parents, node))
        for node in range(len(draft))
    }


@given(proposed(), st.lists(tokens_, max_size=6), st.data())
def test_the_nodes_known_are_those_of_the_proposals_that_begin_with_the_text(
    told: tuple[list[Proposal], Paths], text: list[int], data: st.DataObject
) -> None:
    """The messages may arrive before, while or after the text grows."""
    parts, paths = told
    arrivals = sorted(data.draw(st.integers(0, len(text))) for _ in parts)
    proposals = Proposals(0, UNTIL)
    for step in range(len(text) + 1):
        if step:
            proposals.advance(text[step - 1 : step])
        for part, arrival in zip(parts, arrivals, strict=True):
            if arrival == step:
                proposals.add(part)
    alive = {p[len(text) :] for p in paths if p[: len(text)] == tuple(text) and len(p) > len(text)}
    assert known(proposals) == alive


@given(proposed())
def test_chances_are_those_told_and_rows_are_a_tree_of_the_likeliest(
    told: tuple[list[Proposal], Paths],
) -> None:
    parts, paths = told
    proposals = Proposals(0, UNTIL)
    for part in parts:
        proposals.add(part)
    expected = chances_of(paths)
    assert list(proposals.chances()) == pytest.approx(expected)
    for rows in range(len(expected) + 1):
        list(islice(proposals.chances(), min(rows + 1, len(expected))))
        draft, sum_ = proposals.draft(rows)
        assert len(draft) == rows and tree.problem(draft.parents) is None
        assert sum_ == pytest.approx(sum(expected[:rows]))


def test_the_likeliest_path_leads() -> None:
    """The nodes of the path then lie where a text's tokens would lie."""
    proposals = Proposals(5, UNTIL)
    proposals.add(Proposal(5, (1, 2, 3, 4), (0, 0, 2, 1), (-1.0, -0.1, -0.1, -0.1)))
    assert len(list(proposals.chances())) == 4
    assert proposals.draft(4)[0].tokens == (2, 3, 1, 4)


def test_a_text_that_leaves_the_tree_leaves_nothing() -> None:
    proposals = Proposals(5, UNTIL)
    proposals.add(Proposal(5, (1, 2), (0, 1), (0.0, 0.0)))
    proposals.advance((7,))
    assert not known(proposals)
    proposals.add(Proposal(5, (1, 7), (0, 0), (0.0, 0.0), first=3))
    proposals.add(Proposal(5, (4,), (4,), (0.0,), first=5))
    assert known(proposals) == {(4,)}, "behind a late node that came true"
    assert proposals.late == 2


def test_numbers_of_another_source_are_others() -> None:
    proposals = Proposals(5, UNTIL)
    proposals.add(Proposal(5, (1,), (0,), (0.0,), source=1))
    proposals.add(Proposal(5, (2, 3), (0, 1), (0.0, 0.0), source=2))
    assert known(proposals) == {(1,), (2,), (2, 3)}


def test_nothing_is_known_at_or_behind_the_last_place() -> None:
    proposals = Proposals(5, 7)
    proposals.add(Proposal(5, (1, 2, 3), (0, 1, 2), (0.0,) * 3))
    assert known(proposals) == {(1,)}


@pytest.mark.parametrize(("truth", "lie"), [(0.3, 0.9), (0.9, 0.5), (0.5, 0.5)])
def test_trust_makes_as_many_be_accepted_as_are_expected(truth: float, lie: float) -> None:
    trust = Trust()
    for step in range(4000):
        trust.observe(lie, int(truth * (step + 1)) - int(truth * step))
    assert min(1.0, lie * math.exp(trust.log)) == pytest.approx(truth, abs=0.05)


def test_trust_is_bounded_and_comes_back() -> None:
    trust = Trust()
    for _ in range(10_000):
        trust.observe(1.0, 0)
    assert math.exp(trust.log) < 0.03
    for _ in range(1000):
        trust.observe(0.0, 0)
    assert math.exp(trust.log) > 0.9
    for _ in range(10_000):
        trust.observe(0.1, 4)
    assert trust.log == MAX_LOG
    assert trust.begun().right <= BORROWED, "a new session takes over no more than that"


@pytest.mark.parametrize("known", [0, 1000], ids=["at first", "that was good"])
@pytest.mark.parametrize("parents", [(0,) * 8, tuple(range(8))], ids=["wide", "deep"])
def test_a_drafter_that_is_certain_and_wrong_soon_gets_no_rows(
    parents: tuple[int, ...], known: int
) -> None:
    """The test counts nodes with a chance above a price: one after 32 tokens, one in five steps
    later.
    """
    trust, rows = Trust(), list[int]()
    for step in range(known):
        trust.observe(0.7, int(step % 10 < 7))
    for step in range(500):
        proposals = Proposals(step, UNTIL)
        proposals.add(Proposal(step, tuple(range(8)), parents, (0.0,) * 8), trust.log)
        rows.append(sum(chance > 0.05 for chance in proposals.chances()))
        draft, _ = proposals.draft(rows[-1])
        trust.observe(proposals.claimed(draft, ()), 0)
    assert sum(rows[32:64]) <= 32 and sum(rows[100:]) <= 80


@pytest.mark.parametrize("garbage", [1, 7, 31])
def test_beside_garbage_streams_a_good_stream_keeps_its_chances(garbage: int) -> None:
    """A new stream is not trusted less because of them before its own proposals were tried."""
    shared = Trust.of_all()
    good, *bad = (shared.begun() for _ in range(1 + garbage))
    for _ in range(200):
        good.observe(2.0, 2)
        for each in bad:
            each.observe(1.0, 0)
    assert math.exp(good.log) > 0.95
    assert all(math.exp(each.log) < 0.05 for each in bad)
    new = shared.begun()
    assert math.exp(new.log) > 0.2
    for _ in range(10):
        new.observe(2.0, 2)
    assert math.exp(new.log) > 0.85


def test_a_new_stream_begins_with_what_most_others_have_shown() -> None:
    shared = Trust.of_all()
    assert shared.begun().log == 0.0
    for step in range(4000):
        shared.begun().observe(0.9, step % 2)
    assert math.exp(shared.begun().log) == pytest.approx(0.5 / 0.9, abs=0.1)


def test_what_is_claimed_is_at_most_one_token_after_each_node_that_was_reached() -> None:
    proposals = Proposals(5, UNTIL)
    gains = (math.log(0.5), math.log(0.25), 0.0, 0.0)
    proposals.add(Proposal(5, (1, 2, 3, 4), (0, 0, 1, 1), gains))
    assert list(proposals.chances()) == pytest.approx([0.5, 0.25, 0.25, 0.25])
    draft, _ = proposals.draft(4)
    (first,) = (node for node in range(4) if draft.tokens[node] == 1)
    assert proposals.claimed(draft, ()) == pytest.approx(0.75)
    assert proposals.claimed(draft, (first,)) == pytest.approx(1.75)


def test_no_child_is_likelier_than_its_parent_however_much_is_trusted() -> None:
    proposals = Proposals(5, UNTIL)
    proposals.add(Proposal(5, (1, 2, 3), (0, 1, 2), (-0.1, -0.1, -2.0)), 0.7)
    assert list(proposals.chances()) == pytest.approx([1.0, 1.0, math.exp(-1.3)])


@pytest.mark.parametrize("others", [0, 1], ids=["of one source", "of two sources"])
def test_the_chances_after_a_node_add_up_to_one_at_most_however_much_is_trusted(
    others: int,
) -> None:
    proposals = Proposals(5, UNTIL)
    proposals.add(Proposal(5, (1, 2), (0, 0), (math.log(0.6), math.log(0.3))), math.log(2))
    proposals.add(Proposal(5, (2,) * others, (0,) * others, (-9.0,) * others), 0.0, Source.TEXT)
    assert list(proposals.chances()) == pytest.approx([1 / 1.6, 0.6 / 1.6])


def test_an_empty_tree_promises_what_drafters_are_trusted_with() -> None:
    proposals = Proposals(5, UNTIL)
    assert proposals.expected_gain(1.0, 0.0) == (0.0, 1.0)
    assert proposals.expected_gain(0.25, 0.0) == (0.0, 0.25)
    proposals.add(Proposal(5, (1, 2, 3), (0, 1, 0), (-0.1, -0.5, -3.0)))
    expected, promise = proposals.expected_gain(0.25, 0.0)
    assert expected == pytest.approx(math.exp(-0.1) + math.exp(-0.6) + math.exp(-3))
    assert promise == pytest.approx(math.exp(-0.6))
