"""A step takes no more than the limits allow and than decoding sessions can wait for."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import (
    MIN_PROMPT_CHUNK,
    RESTING_SECONDS,
    DecodeSeconds,
    StepLimits,
    is_decoding,
    is_long,
    load_of,
)
from tandem.engine.schedule.cost import CostModel, StepLoad
from tandem.protos import tree
from tandem.protos.types import MAX_NODES
from tests.laws.segments import (
    SLOWLY,
    TABLE,
    Known,
    composed,
    costs,
    limits_,
    longs,
    paces,
    shorts,
)


@given(st.lists(shorts | longs, max_size=12), costs, limits_, paces)
def test_a_step_keeps_the_limits_and_feeds_what_comes_next_of_each(
    segments: list[Segment], cost: CostModel, limits: StepLimits, pace: float
) -> None:
    """A segment that cannot be cut is fed alone, however long it is."""
    chosen = composed(segments, cost, limits, pace)
    assert bool(chosen) == bool(segments)
    assert len({index for index, _ in chosen}) == len(chosen) <= limits.sessions
    if sum(len(chunk.tokens) for _, chunk in chosen) > limits.tokens:
        assert len(chosen) == 1 and not is_long(segments[chosen[0][0]])
    for index, chunk in chosen:
        whole = segments[index]
        if chunk is not whole:
            assert is_long(whole)
            assert chunk.tokens == whole.tokens[: len(chunk.tokens)] != ()
            assert len(chunk.tokens) <= len(whole.tokens) - whole.num_logits
            assert (chunk.table, chunk.context, chunk.num_logits) == (
                whole.table,
                whole.context,
                0,
            )
            assert chunk.parents == tree.chain(len(chunk.tokens))


@given(st.lists(shorts | longs, min_size=1, max_size=12), costs, limits_, paces)
def test_new_prompts_slow_a_step_no_more_than_allowed_but_for_the_least_piece(
    segments: list[Segment], cost: CostModel, limits: StepLimits, pace: float
) -> None:
    chosen = composed(segments, cost, limits, pace)
    short = sum((load_of(segments[i]) for i, _ in chosen if not is_long(segments[i])), StepLoad())
    chunks = [chunk for i, chunk in chosen if is_long(segments[i])]
    bearable = (1 + limits.slack) * max(pace, cost.predict(short) if short.sessions else 0.0)
    predicted = cost.predict(sum((load_of(chunk) for _, chunk in chosen), StepLoad()))
    if bearable and chunks and predicted > bearable * (1 + 1e-9):
        assert len(chunks) == 1 and len(chunks[0].tokens) <= MIN_PROMPT_CHUNK


@given(
    st.lists(longs, min_size=1, max_size=4),
    costs,
    st.lists(shorts, min_size=1, max_size=3),
    st.floats(0, 2),
    paces,
)
def test_a_step_wastes_no_time_that_a_prompt_could_use(
    prompts: list[Segment], cost: CostModel, decoding: list[Segment], slack: float, pace: float
) -> None:
    """The next prompt gets as many tokens as fit: with one more token, the step would be too
    slow.
    """
    limits = StepLimits(sessions=8, tokens=600, slack=slack)
    chosen = composed([*decoding, *prompts], cost, limits, pace)
    fed = [chunk for index, chunk in chosen if index >= len(decoding)]
    assert fed, "a prompt gets on"
    last = prompts[len(fed) - 1]
    if len(fed[-1].tokens) == len(last.tokens):
        return
    short = sum((load_of(segment) for segment in decoding), StepLoad())
    total = sum((load_of(chunk) for _, chunk in chosen), StepLoad())
    more = total + StepLoad(1, last.context + len(fed[-1].tokens) + 1, 0)
    assert (
        total.tokens == limits.tokens
        or len(fed[-1].tokens) == last.prefillable
        or cost.predict(more) > (1 + slack) * max(pace, cost.predict(short)) > 0
    )


@given(st.lists(longs, min_size=1, max_size=6), costs, st.integers(MIN_PROMPT_CHUNK, 500))
def test_with_nobody_decoding_prompts_take_the_whole_step(
    prompts: list[Segment], cost: CostModel, most: int
) -> None:
    chosen = composed(prompts, cost, StepLimits(sessions=8, tokens=most, seconds=math.inf), 0.0)
    assert [index for index, _ in chosen] == list(range(len(chosen))), "first come, first served"
    left = most
    for (_, chunk), prompt in zip(chosen, prompts, strict=False):
        whole = len(prompt.tokens)
        assert len(chunk.tokens) == (whole if whole <= left else min(left, prompt.prefillable))
        left -= len(chunk.tokens)
    assert len(chosen) == len(prompts) or left < MIN_PROMPT_CHUNK


@given(st.lists(longs, min_size=1, max_size=6), st.floats(0.01, 2))
def test_with_nobody_decoding_a_step_is_short_all_the_same(
    prompts: list[Segment], seconds: float
) -> None:
    """A new request may come, and it would have to wait for the end of the step."""
    cost = Known(*SLOWLY)
    chosen = composed(prompts, cost, StepLimits(sessions=8, tokens=500, seconds=seconds), 0.0)
    total = sum((load_of(chunk) for _, chunk in chosen), StepLoad())
    assert cost.predict(total) <= seconds or total.tokens <= MIN_PROMPT_CHUNK


def test_the_pace_is_that_of_decoding_sessions_and_forgotten_when_they_rest() -> None:
    pace = DecodeSeconds()
    assert pace.at(0.0) == 0.0
    pace.observe(0.1, 10.0)
    assert pace.at(10.0) == pace.at(10.0 + RESTING_SECONDS) == 0.1
    pace.observe(0.2, 10.5)
    assert 0.1 < pace.at(10.5) < 0.15, "one step does not make a pace"
    assert pace.at(10.6 + RESTING_SECONDS) == 0.0
    pace.observe(0.3, 20.0)
    assert pace.at(20.0) == 0.3


def test_who_waits_for_logits_is_decoding_but_for_long_prompts() -> None:
    """A session with the largest draft counts as decoding. A chunk of a prompt, however short, does
    not count as decoding, because nobody waits for its logits.
    """
    draft = tree.chain(MAX_NODES)
    assert is_decoding(Segment(TABLE, 9, (1, *draft), tree.hang(1, draft), 1 + MAX_NODES))
    assert is_decoding(Segment(TABLE, 9, (1,), (-1,), 1))
    prompt = Segment(TABLE, 0, tuple(range(99)), tree.chain(99), 1)
    assert not is_decoding(prompt) and not is_decoding(prompt.first(MIN_PROMPT_CHUNK))
