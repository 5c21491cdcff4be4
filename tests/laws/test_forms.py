"""Forms of passes by rows: few, all known beforehand, and no larger than what is fed needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.rooms import Room
from engine.forward.cuda.table import SIZES, blanks, lay_out
from engine.forward.segment import Segment
from protos import tree

SPARE = 100_000
ROOM = 2048


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """What up to 20 sessions may feed: texts and trees, of which any logits may be wanted."""
    fed = []
    for number in range(draw(st.integers(0, 20))):
        head, nodes = draw(st.integers(0, 600)), draw(st.integers(0, 64))
        parents = [draw(st.integers(-1, node - 1)) for node in range(nodes)]
        hung = tree.hang(head, parents) if head + nodes else (-1,)
        wanted = draw(st.integers(0, len(hung)))
        context = draw(st.integers(0, 1000))
        fed.append(Segment(Room(ROOM * number, ROOM), context, (1,) * len(hung), hung, wanted))
    return fed


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("sizes", [SIZES, (64,), (16, 64, 512)])
@given(fed=segments())
def test_every_pass_of_a_step_has_a_form_that_is_captured_at_start(
    fed: list[Segment], sizes: tuple[int, ...], exact: bool
) -> None:
    known = {rows.form for rows in blanks(SPARE, exact, sizes)}
    assert {rows.form for rows in lay_out(fed, SPARE, exact, sizes)} <= known


@pytest.mark.parametrize("exact", [True, False])
def test_passes_that_are_captured_at_start_differ_and_touch_no_session(exact: bool) -> None:
    passes = blanks(SPARE, exact)
    assert len({rows.form for rows in passes}) == len(passes)
    for rows in passes:
        assert set(rows.places.tolist()) == {SPARE}
        assert len(rows.logits_rows) == rows.form.kept and rows.spans[0, -1] == rows.form.rows


@given(fed=segments())
def test_tails_are_gathered_only_where_a_row_leaves_the_stretch(fed: list[Segment]) -> None:
    """Texts are read where they lie, and a chain is a text."""
    branching = any(tree.trunk(segment.parents) < len(segment.parents) for segment in fed)
    passes = lay_out(fed, SPARE, exact=True)
    assert any(len(rows.tail_places) for rows in passes) == branching
