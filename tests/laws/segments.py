"""Hypothesis strategies for segments as services feed them, and for the costs of a step."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tandem.engine.cache.pages import PAGE, PageTable, page_aligned
from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import MIN_PROMPT_CHUNK, SHORT_PREFIX, StepLimits, compose
from tandem.engine.schedule.cost import CostModel
from tandem.protos import tree


def straight(start: int, capacity: int) -> PageTable:
    """Return a table with consecutive pages for this many positions, from a slot on."""
    first = start // PAGE
    return PageTable(list(range(first, first + page_aligned(capacity) // PAGE)))


TABLE = straight(0, 1 << 16)
SLOWLY = (0.02, 0.004, 1e-7, 1e-4)  # seconds for a step, for a token, for a key and for a session


class Known(CostModel):
    """A cost model whose costs are known and that learns nothing."""

    def __init__(self, *terms: float) -> None:
        super().__init__()
        self._steps = 1
        self._terms = terms or (0.0, 0.0, 0.0, 0.0)  # type: ignore[assignment]


def composed(
    segments: Sequence[Segment], cost: CostModel, limits: StepLimits, pace: float
) -> list[tuple[int, Segment]]:
    """Compose a step to which no rows can be added; return the indices of its segments and how much
    of each is fed.
    """
    batch = compose(segments, lambda _: iter(()), cost, limits, pace)
    return [(allocation.index, allocation.chunk) for allocation in batch.allocations]


def trees(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw the parents of a token tree."""
    return st.integers(0, most).flatmap(
        lambda size: st.tuples(*(st.integers(-1, node - 1) for node in range(size)))
    )


@st.composite
def verifying(draw: st.DrawFn, least: int, most: int) -> Segment:
    """Draw committed tokens with a drafted tree below the last one; the logits of that token and of
    the tree are wanted.
    """
    length, drafted = draw(st.integers(least, most)), draw(trees(12))
    parents = tree.hang(length, drafted)
    context, wanted = draw(st.integers(0, 300)), 1 + len(drafted)
    return Segment(TABLE, context, tuple(range(len(parents))), parents, wanted)


@st.composite
def drafting(draw: st.DrawFn) -> Segment:
    """Draw one level of a tree whose upper nodes are cached."""
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
