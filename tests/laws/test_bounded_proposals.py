"""The proposals of a drafter that never stops sending: how many are kept, and how many are looked
at.
"""

from __future__ import annotations

import pytest

from tandem.protos.streams import Proposal
from tandem.protos.types import MAX_NODES
from tandem.verifier_service.proposals import MOST, REMEMBERED, Proposals

UNTIL = 1 << 20


def test_what_is_remembered_is_bounded_whatever_a_drafter_sends() -> None:
    proposals = Proposals(5, UNTIL)
    for step in range(300):
        proposals.add(Proposal(5, tuple(range(64)), (0,) * 64, (0.0,) * 64, first=1 + 64 * step))
        proposals.add(
            Proposal(5 + step, (1,) * 64, (0,) * 64, (0.0,) * 64, first=10**6 + 64 * step)
        )
        proposals.advance((1,))
    assert len(proposals._numbered) <= MOST + 64
    assert len(proposals._text) <= REMEMBERED + 1


@pytest.mark.parametrize("parents", [(0,) * 64, tuple(range(64))], ids=["wide", "deep"])
def test_nodes_of_the_same_numbers_are_bounded_and_others_follow_when_the_text_goes_on(
    parents: tuple[int, ...],
) -> None:
    proposals, most = Proposals(5, UNTIL), MOST + MAX_NODES
    for step in range(1, 2 + most // 64):
        tokens = tuple(range(64 * step, 64 * step + 64))
        proposals.add(Proposal(5, tokens, parents, (0.0,) * 64))
        assert sum(1 for _ in proposals.chances()) == min(64 * step, most)
    proposals.advance((7,))
    proposals.add(Proposal(6, (1, 2), (0, 1), (0.0, 0.0), source=1))
    assert len(list(proposals.chances())) == 2


def test_no_more_nodes_are_expected_to_be_accepted_than_a_step_takes() -> None:
    proposals, count = Proposals(5, UNTIL), 2 * MAX_NODES
    for first in range(1, count, MAX_NODES):
        parents = tuple(range(first - 1, first - 1 + MAX_NODES))
        proposals.add(Proposal(5, (7,) * MAX_NODES, parents, (0.0,) * MAX_NODES, first))
    assert sum(proposals.chances()) == count
    assert proposals.expected_gain(1.0, 0.0) == (MAX_NODES, 0.0)
