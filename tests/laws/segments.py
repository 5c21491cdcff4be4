"""Segments as services feed them, and what a step costs, to draw from."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tandem.engine.cache.pages import PAGE, PageTable, page_aligned
from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import MIN_PROMPT_CHUNK, SHORT_PREFIX, StepLimits, compose
from tandem.engine.schedule.cost import CostModel
from tandem.protos import tree


def straight(start: int, capacity: int) -> PageTable:
    """Pages one after the other, for so many positions from a slot on."""
    first = start // PAGE
    return PageTable(list(range(first, first + page_aligned(capacity) // PAGE)))


TABLE = straight(0, 1 << 16)
SLOWLY = (0.02, 0.004, 1e-7, 1e-4)  # seconds for a step, a token, a key, a session


class Known(CostModel):
    """A cost model that has nothing to learn."""

    def __init__(self, *terms: float) -> None:
        super().__init__()
        self._steps = 1
        self._terms = terms or (0.0, 0.0, 0.0, 0.0)  # type: ignore[assignment]


def composed(
    segments: Sequence[Segment], cost: CostModel, limits: StepLimits, pace: float
) -> list[tuple[int, Segment]]:
    """A step to which no rows can be added: indices into `segments`, what of each is fed."""
    batch = compose(segments, lambda _: iter(()), cost, limits, pace)
    return [(allocation.index, allocation.chunk) for allocation in batch.allocations]


def trees(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Parents of trees."""
    return st.integers(0, most).flatmap(
        lambda size: st.tuples(*(st.integers(-1, node - 1) for node in range(size)))
    )


@st.composite
def verifying(draw: st.DrawFn, least: int, most: int) -> Segment:
    """Committed tokens with a drafted tree below the last: logits of that one and the tree."""
    length, drafted = draw(st.integers(least, most)), draw(trees(12))
    parents = tree.hang(length, drafted)
    context, wanted = draw(st.integers(0, 300)), 1 + len(drafted)
    return Segment(TABLE, context, tuple(range(len(parents))), parents, wanted)


@st.composite
def drafting(draw: st.DrawFn) -> Segment:
    """A level of a tree whose nodes above are cached."""
    parents = draw(trees(20).filter(len))
    fed = draw(st.integers(1, len(parents)))
    wanted = draw(st.integers(1, fed))
    return Segment(TABLE, draw(st.integers(0, 300)), tuple(range(fed)), parents, wanted)


shorts = verifying(1, SHORT_PREFIX) | drafting()
longs = verifying(SHORT_PREFIX + 2, 400)
terms = st.tuples(*[st.floats(0, 0.1)] * 4) | st.just((0.0, 0.0, 0.0, 0.0)) | st.just(SLOWLY)
costs = terms.map(lambda known: Known(*known))
limits_ = st.builds(
    StepLimits, st.integers(1, 8), st.integers(MIN_PROMPT_CHUNK, 500), st.floats(0, 2)
)
paces = st.just(0.0) | st.floats(0, 2)
