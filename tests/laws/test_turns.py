"""The composition of successive steps: every session is served, and the chunks of a prompt make up
the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import MIN_PROMPT_CHUNK, SHORT_PREFIX, StepLimits
from tandem.engine.schedule.cost import CostModel
from tandem.protos import tree
from tests.laws.segments import (
    SLOWLY,
    TABLE,
    Known,
    composed,
    costs,
    drafting,
    limits_,
    longs,
    paces,
    shorts,
)


@dataclass
class Queue:
    """Segments that wait, least recently fed first, as in the model thread."""

    waiting: list[tuple[int, Segment]]
    cost: CostModel
    limits: StepLimits
    pace: float = 0.0

    def step(self) -> list[tuple[int, Segment]]:
        """Compose a step; a segment that was fed in part waits at the end, and the others come back
        as given.
        """
        chosen = composed(
            [segment for _, segment in self.waiting], self.cost, self.limits, self.pace
        )
        fed = [(self.waiting[index], chunk) for index, chunk in chosen]
        for entry, _ in fed:
            self.waiting.remove(entry)
        for (name, segment), chunk in fed:
            if chunk is not segment:
                self.waiting.append((name, segment.remainder(len(chunk.tokens))))
        return [(name, chunk) for (name, _), chunk in fed]


@given(longs, costs, limits_, paces, st.lists(drafting(), max_size=3))
def test_the_pieces_of_a_prompt_are_the_prompt(
    prompt: Segment, cost: CostModel, limits: StepLimits, pace: float, others: list[Segment]
) -> None:
    """Every token is fed once, in order, at its own position; the rows whose logits are wanted come
    last, together.
    """
    limits = StepLimits(
        limits.sessions + len(others), limits.tokens + 20 * len(others), limits.slack
    )
    queue = Queue([(0, prompt)], cost, limits, pace)
    chunks: list[Segment] = []
    while queue.waiting:
        queue.waiting += [*enumerate(others, start=1)]
        fed = [chunk for name, chunk in queue.step() if name == 0]
        assert len(fed) == 1, "a prompt gets on in every step"
        chunks += fed
        queue.waiting = [entry for entry in queue.waiting if entry[0] == 0]
    assert sum((chunk.tokens for chunk in chunks), ()) == prompt.tokens
    assert len(chunks) <= 1 + len(prompt.tokens) // MIN_PROMPT_CHUNK
    context = prompt.context
    for chunk in chunks:
        assert (chunk.table, chunk.context) == (prompt.table, context)
        context += len(chunk.tokens)
    assert [chunk.num_logits for chunk in chunks] == [0] * (len(chunks) - 1) + [prompt.num_logits]
    last, before = chunks[-1], len(prompt.tokens) - len(chunks[-1].tokens)
    assert tree.problem(last.parents) is None
    for node in range(len(last.parents)):
        path = [before + step for step in tree.path(last.parents, node)]
        assert [*range(before), *path] == tree.path(prompt.parents, before + node)


@given(st.lists(shorts, min_size=1, max_size=12), costs, limits_, st.lists(longs, max_size=2))
def test_who_decodes_is_served_as_often_as_the_limits_allow(
    decoding: list[Segment], cost: CostModel, limits: StepLimits, prompts: list[Segment]
) -> None:
    """Each session is fed again and again, in turn, beside at least as many others as surely
    fit.
    """
    # rests that are too short to be cut
    rests = [SHORT_PREFIX + prompt.num_logits for prompt in prompts]
    longest = max(rests + [len(segment.tokens) for segment in decoding])
    spare = 1 if prompts else 0  # every step may contain a part of a prompt
    share = min(limits.sessions - spare, (limits.tokens - spare * MIN_PROMPT_CHUNK) // longest)
    bound = -(-(len(decoding) + len(prompts)) // max(1, share))
    queue = Queue([*enumerate(decoding)], cost, limits)
    queue.waiting += [*enumerate(prompts, start=100)]
    since = dict.fromkeys(range(len(decoding)), 0)
    for _ in range(20):
        fed = {name for name, _ in queue.step()}
        queue.waiting += [(name, decoding[name]) for name in since if name in fed]
        since = {name: 0 if name in fed else steps + 1 for name, steps in since.items()}
        assert max(since.values()) < bound


@given(st.lists(longs, min_size=1, max_size=5), costs, st.integers(0, 4), paces)
def test_every_prompt_gets_on(
    prompts: list[Segment], cost: CostModel, decoding: int, pace: float
) -> None:
    """Prompts take turns with at least `MIN_PROMPT_CHUNK` tokens each, as long as steps have
    room.
    """
    queue = Queue([*enumerate(prompts)], cost, StepLimits(sessions=8, tokens=200), pace)
    one = Segment(TABLE, 100, (1,), (-1,), 1)
    since = dict.fromkeys(range(len(prompts)), 0)
    for _ in range(30):
        queue.waiting += [(100 + name, one) for name in range(decoding)]
        fed = {name for name, _ in queue.step()}
        assert fed.issuperset(range(100, 100 + decoding))
        left = {name for name, _ in queue.waiting}
        since = {name: 0 if name in fed else since[name] + 1 for name in left}
        assert max(since.values(), default=0) < len(prompts)


@pytest.mark.parametrize(
    "limits", [StepLimits(4, 512), StepLimits(32, MIN_PROMPT_CHUNK)], ids=["sessions", "tokens"]
)
def test_a_prompt_gets_on_however_many_sessions_are_decoding(limits: StepLimits) -> None:
    """The steps of decoding sessions are full, and more sessions wait all the time."""
    prompt = Segment(TABLE, 0, tuple(range(200)), tree.chain(200), 1)
    queue = Queue([(0, prompt)], Known(*SLOWLY), limits)
    one = Segment(TABLE, 100, (1,), (-1,), 1)
    queue.waiting += [(name, one) for name in range(1, 41)]
    for _ in range(1000):
        fed = {name for name, _ in queue.step()} - {0}
        queue.waiting += [(name, one) for name in fed]
        if 0 not in {name for name, _ in queue.waiting}:
            return
    pytest.fail("it starved")
