"""The shapes of passes: they are few, all are known beforehand, and none is larger than its rows
need.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.cache.pages import PAGE
from tandem.engine.forward.cuda.rows import KVLayout
from tandem.engine.forward.cuda.table import SIZES, padding_passes, row_plans
from tandem.engine.forward.segment import Segment
from tandem.protos import tree
from tests.laws.segments import straight

SIZE = 2048
LAYOUT = KVLayout(20 * SIZE, PAGE, SIZE // PAGE)


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """Draw what up to 20 sessions may feed: texts and trees, with any logits wanted."""
    fed = []
    for number in range(draw(st.integers(0, 20))):
        head, nodes = draw(st.integers(0, 600)), draw(st.integers(0, 64))
        parents = [draw(st.integers(-1, node - 1)) for node in range(nodes)]
        hung = tree.hang(head, parents) if head + nodes else (-1,)
        wanted = draw(st.integers(0, len(hung)))
        context = draw(st.integers(0, 1000))
        fed.append(Segment(straight(SIZE * number, SIZE), context, (1,) * len(hung), hung, wanted))
    return fed


@cache
def captured(exact: bool, sizes: tuple[int, ...]) -> set[Any]:
    """Return the shapes of the passes that are captured at start."""
    return {rows.shape for rows in padding_passes(LAYOUT, exact, sizes)}


@given(fed=segments(), sizes=st.sampled_from([SIZES, (64,), (16, 64, 512)]), exact=st.booleans())
def test_every_pass_of_a_step_has_a_form_that_is_captured_at_start(
    fed: list[Segment], sizes: tuple[int, ...], exact: bool
) -> None:
    shapes = {rows.shape for rows in row_plans(fed, LAYOUT, exact, sizes)}
    assert shapes <= captured(exact, sizes)


@pytest.mark.parametrize("exact", [True, False])
def test_passes_that_are_captured_at_start_differ_and_touch_no_session(exact: bool) -> None:
    passes = padding_passes(LAYOUT, exact)
    assert len({rows.shape for rows in passes}) == len(passes)
    for rows in passes:
        assert set(rows.slots.tolist()) == {LAYOUT.padding}
        assert len(rows.logits_rows) == rows.shape.outputs and rows.reads[0] == 0
