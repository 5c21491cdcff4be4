"""Where an answer ends inside accepted tokens: at a limit, a stop string, the end of text, or half
a character.

The target says a known text, the drafter is wrong at known places, and each step waits for its
proposal: every figure of an answer is known beforehand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from grpc import aio

from tandem.v1 import orchestrator_pb2 as api
from tests.scripted import TEXT, TOKENS, tokens_of
from tests.served import Pair, Tandem, serve_all, serve_models
from tests.system.test_same_text import ask

LEVELS, WRONG_EVERY = 4, 7
RULES = (api.ACCEPTANCE_RULE_TOP1, api.ACCEPTANCE_RULE_REJECT)

pytestmark = pytest.mark.usefixtures("waited_for")


@pytest.fixture(scope="module")
async def tandem(scripted: Callable[[str, int], Pair]) -> AsyncIterator[Tandem]:
    async with (
        serve_models(scripted(TEXT, WRONG_EVERY)) as services,
        serve_all(services) as tandem,
    ):
        yield tandem


def steps_of(count: int, wrong_every: int = WRONG_EVERY) -> list[int]:
    """Return the tokens of each step until there are `count`: accepted ones, and the next token."""
    steps: list[int] = []
    while (length := sum(steps)) < count:
        right = 0
        while right < LEVELS and (length + right + 1) % wrong_every:
            right += 1
        steps.append(min(right + 1, count - length))
    return steps


def drafted(rule: int = RULES[0], **options: Any) -> api.GenerateRequest:
    """Return a request whose every step has a draft of `LEVELS` tokens."""
    request = ask([5], levels=LEVELS, branches=1, **options)
    request.speculation.rule = rule
    return request


async def chunks(tandem: Tandem, request: api.GenerateRequest) -> list[Any]:
    """Return the chunks of a stream, and the whole answer."""
    call = tandem.stub.StreamGenerate(api.StreamGenerateRequest(request=request))
    events = [event async for event in call]
    return [*(event.chunk for event in events[:-1]), events[-1].complete]


@pytest.mark.parametrize("rule", RULES)
async def test_steps_accept_as_far_as_the_drafter_is_right(tandem: Tandem, rule: int) -> None:
    *steps, whole = await chunks(tandem, drafted(rule))
    expected = steps_of(len(TOKENS) + 1)
    assert [len(step.token_ids) for step in steps] == expected
    assert (whole.text, list(whole.token_ids)) == (TEXT, [*TOKENS, 0])
    assert whole.finish_reason == api.FINISH_REASON_STOP
    figures = whole.speculation
    assert figures.num_spec_steps == figures.num_steps_with_guesses == len(expected)
    assert figures.num_draft_tokens == LEVELS * len(expected)
    # the draft contains the end of text
    accepted = [size - 1 for size in expected[:-1]] + expected[-1:]
    assert list(figures.acceptance_histogram) == [accepted.count(n) for n in range(LEVELS + 1)]


@pytest.mark.parametrize("limit", range(1, 2 * WRONG_EVERY))
async def test_a_limit_of_tokens_cuts_inside_what_was_accepted(tandem: Tandem, limit: int) -> None:
    *steps, whole = await chunks(tandem, drafted(tokens=limit))
    assert list(whole.token_ids) == TOKENS[:limit]
    assert whole.finish_reason == api.FINISH_REASON_LENGTH
    assert [len(step.token_ids) for step in steps] == steps_of(limit)
    assert "".join(step.text for step in steps) == whole.text


@pytest.mark.parametrize("place", range(1, 2 * WRONG_EVERY))
async def test_a_stop_token_cuts_inside_what_was_accepted(tandem: Tandem, place: int) -> None:
    request = drafted()
    request.stopping.stop_token_ids.append(TOKENS[place])
    answer = await tandem.stub.Generate(request)
    assert list(answer.token_ids) == TOKENS[: TOKENS.index(TOKENS[place]) + 1]
    assert answer.finish_reason == api.FINISH_REASON_STOP


@pytest.mark.parametrize("stop", ["upon", "ere w", "é", "東", "京 ", "🦊", "tea. T", "The end."])
async def test_a_stop_string_ends_the_text_before_it_wherever_steps_end(
    tandem: Tandem, stop: str
) -> None:
    request = drafted()
    request.stopping.stop.append(stop)
    *steps, whole = await chunks(tandem, request)
    assert whole.text == TEXT.partition(stop)[0]
    assert "".join(step.text for step in steps) == whole.text
    assert (whole.finish_reason, whole.matched_text) == (api.FINISH_REASON_STOP, stop)


@pytest.mark.parametrize("limit", range(10, len(TOKENS)))
async def test_no_chunk_has_half_a_character(tandem: Tandem, limit: int) -> None:
    """The fox emoji and 東京 are several tokens each; an answer may end inside one."""
    *steps, whole = await chunks(tandem, drafted(tokens=limit))
    assert "".join(step.text for step in steps) == whole.text
    assert TEXT.startswith(whole.text.rstrip("\N{REPLACEMENT CHARACTER}"))
    assert all("\N{REPLACEMENT CHARACTER}" not in step.text for step in steps[:-1])


async def test_a_prediction_saves_steps_and_changes_no_text(tandem: Tandem) -> None:
    """The prediction differs from the answer in one word."""
    request = ask([5])
    request.speculation.prediction = TEXT.replace("Lily", "Max")
    answer = await tandem.stub.Generate(request)
    assert list(answer.token_ids) == [*TOKENS, 0]
    assert answer.speculation.num_spec_steps <= len(TOKENS) / 3
    request.speculation.prediction = "Nothing of this is said."
    wrong = await tandem.stub.Generate(request)
    assert wrong.token_ids == answer.token_ids


async def test_a_prediction_is_followed_from_its_first_token_on(tandem: Tandem) -> None:
    """The end of the prompt is looked up in the prediction."""
    said = "Once upon a time, there was a"
    prompt, rest = [5, *tokens_of(said)], TEXT.removeprefix(said)
    request = ask(prompt)
    request.speculation.prediction = rest
    first, *_, whole = await chunks(tandem, request)
    assert whole.text == rest
    assert len(first.token_ids) > 1


async def test_a_prediction_is_no_use_where_branches_are_drawn(tandem: Tandem) -> None:
    request = ask([5])
    request.speculation.prediction = TEXT
    request.speculation.method = api.DRAFT_METHOD_MEDUSA_LITE
    with pytest.raises(aio.AioRpcError, match=r"speculation.prediction cannot be used with"):
        await tandem.stub.Generate(request)
