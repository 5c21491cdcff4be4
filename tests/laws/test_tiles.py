"""The layout of a step, played with names instead of keys: every row sees its own path, and each
key once.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.cache.pages import PAGE, PageTable
from tandem.engine.cache.pool import SlotIndex
from tandem.engine.forward.segment import Segment
from tandem.engine.forward.tiles import ROW_MULTIPLE, Tile, TilePlan, tile_plan
from tandem.protos import tree
from tests.laws.segments import trees

CPU = torch.device("cpu")
# the name of a key: its segment, and its position in the context or its node
Name = tuple[int, int]


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Draw a verifier's segment, or one level of a drafter; its pages are assigned later."""
    length, drafted = draw(st.integers(1, PAGE + 9)), draw(trees(24))
    parents = tree.hang(length, drafted)
    cached = draw(st.integers(0, len(parents) - 1)) if draw(st.booleans()) else 0
    fed = len(parents) - cached
    wanted = draw(st.integers(0, fed))
    tokens = tuple(draw(st.integers(1, 9)) for _ in range(fed))
    return Segment(PageTable(), draw(st.integers(0, 70)), tokens, parents, wanted)


def steps() -> st.SearchStrategy[list[Segment]]:
    """Draw segments of several sessions, each in its own pages, in any order."""

    def place(found: list[Segment], order: list[int]) -> list[Segment]:
        for number, segment in enumerate(found):
            segment.table.pages += order[5 * number :][:5]
        return found

    return st.builds(
        place, st.lists(segments(), min_size=1, max_size=3), st.permutations(range(15))
    )


def stored(found: list[Segment]) -> dict[int, Name]:
    """Return the key at each place of the pool before the step."""
    return {
        slot: (number, place)
        for number, segment in enumerate(found)
        for place, slot in enumerate(segment.table.slots(0, segment.context + segment.cached))
    }


def fed(found: list[Segment]) -> list[Name]:
    """Return the key that each row of the step makes."""
    return [
        (number, segment.context + segment.cached + row)
        for number, segment in enumerate(found)
        for row in range(len(segment.tokens))
    ]


def played(step: TilePlan, found: list[Segment]) -> dict[int, list[Name]]:
    """Return the keys that each row saw, in the order of its positions."""
    keys, pool = fed(found), stored(found)
    for row, place in zip(range(step.count), numbers(step.slots), strict=True):
        pool[place] = keys[row]
    seen: dict[int, list[Name]] = {}
    for tile in step.tiles:
        for number, row in enumerate(range(tile.rows.start, tile.rows.stop)):
            assert row not in seen, "attended twice"
            seen[row] = looked_at(tile, number, pool)
    return seen


def numbers(index: SlotIndex) -> list[int]:
    """Return the numbers of an index."""
    if isinstance(index, slice):
        return list(range(index.start, index.stop))
    return list(index.tolist())


def looked_at(tile: Tile, number: int, pool: dict[int, Name]) -> list[Name]:
    """Return what a row of a tile sees. A place without a key may be read but not seen."""
    slots = numbers(tile.keys)
    every = torch.ones(tile.count, len(slots), dtype=torch.bool)
    allowed = every if tile.allowed is None else tile.allowed
    return [pool[slot] for key, slot in enumerate(slots) if allowed[number, key]]


def own_path(segment: Segment, number: int, node: int) -> list[Name]:
    """Return what a node has to see: the context, the nodes above it and itself."""
    path = tree.path(segment.parents, node)
    return [
        (number, place)
        for place in (*range(segment.context), *(segment.context + step for step in path))
    ]


@given(steps())
def test_every_row_sees_its_context_its_ancestors_and_itself(found: list[Segment]) -> None:
    seen = played(tile_plan(found, CPU), found)
    row = 0
    for number, segment in enumerate(found):
        for node in range(segment.cached, len(segment.parents)):
            assert seen.pop(row) == own_path(segment, number, node)
            row += 1
    assert not seen


@given(steps())
def test_a_tile_knows_the_positions_of_rows_and_keys(found: list[Segment]) -> None:
    """A window is counted in positions, not in places."""
    step = tile_plan(found, CPU)
    for tile, segment in zip(step.tiles, found, strict=True):
        own = [segment.context + depth for depth in tree.depths(segment.parents)]
        assert tile.row_positions.tolist() == own[segment.cached :]
        assert tile.key_positions.tolist() == [*range(segment.context), *own]


def enough(rows: int, needed: int) -> bool:
    """Return whether rows are padded to a size that kernels like, and no further."""
    return needed <= rows < needed + ROW_MULTIPLE


@given(steps())
def test_a_step_feeds_all_tokens_at_their_positions_and_asks_for_the_last_rows(
    found: list[Segment],
) -> None:
    step = tile_plan(found, CPU)
    tokens = [token for segment in found for token in segment.tokens]
    positions = [
        segment.context + depth
        for segment in found
        for depth in tree.depths(segment.parents)[segment.cached :]
    ]
    assert step.count == len(tokens)
    assert step.token_ids.shape == step.positions.shape
    assert enough(step.token_ids.shape[1], len(tokens))
    assert step.token_ids[0, : len(tokens)].tolist() == tokens
    assert step.positions[0, : len(tokens)].tolist() == positions
    rows = iter(range(len(tokens)))
    wanted: list[int] = []
    for segment in found:
        own = [next(rows) for _ in segment.tokens]
        wanted += own[len(own) - segment.num_logits :]
    assert step.logits_rows[: len(wanted)].tolist() == wanted
    assert enough(len(step.logits_rows), len(wanted))
