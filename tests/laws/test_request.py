"""A request is completed with defaults, and all of its options reach the round worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.orchestrator.frontend.messages import decode_request
from tandem.orchestrator.requests.checks import ServedModel, check_resumable
from tandem.protos.streams import LONGEST_MATCH
from tandem.protos.types import (
    EXACT,
    MAX_NODES,
    DraftShape,
    GenerationDefaults,
    Method,
    ModelDescription,
    Rule,
    SamplingParams,
    Schedule,
)
from tandem.v1 import orchestrator_pb2 as api
from tests.laws.requests import (
    MODEL,
    SERVED,
    SHAPE,
    ask,
    run_of,
    sampling,
    speculation,
    stopping,
    tokenise,
)


def test_a_request_of_a_prompt_alone_gets_every_default() -> None:
    run = run_of(ask(text="abc", request_id="id-1"))
    assert (run.request_id, run.prompt, run.completion) == ("id-1", tokenise("abc"), ())
    assert run.sampling == SamplingParams(1.0, 0, 1.0, 0, prompt_length=3, end_tokens=(0, 7))
    assert run.max_new_tokens == 47, "all that the context has room for, as that is less than 128"
    assert run.stop_token_ids == {0, 7}
    assert run.shape == SHAPE


def test_the_default_length_is_128_where_there_is_room() -> None:
    roomy = ServedModel(ModelDescription("tiny", "", 100, 4096, (), "", ""), SHAPE, 1000, {})
    assert run_of(ask(), roomy).max_new_tokens == 128


def test_a_prediction_follows_as_much_of_a_prompt_as_can_match() -> None:
    prompt = tuple(range(1, 41))
    assert len(prompt) > LONGEST_MATCH
    request = ask(token_ids=api.TokenIds(ids=prompt), speculation={"prediction": "ab"})
    run = run_of(request, tokenise=lambda text, special=True: tokenise(text))
    assert run.known == prompt[-LONGEST_MATCH:] + tokenise("ab")


def test_all_that_is_asked_for_reaches_the_worker() -> None:
    request = ask(
        token_ids=api.TokenIds(ids=[0, 5, 99]),
        model="tiny",
        sampling=api.Sampling(
            temperature=0.5,
            top_p=0.75,
            top_k=3,
            min_p=0.25,
            repetition_penalty=1.5,
            presence_penalty=-0.5,
            frequency_penalty=2,
            logit_bias={9: -100, 4: 0.5},
            seed=7,
        ),
        stopping=api.Stopping(
            min_new_tokens=3, max_new_tokens=40, stop=["x", "<|end|>"], stop_token_ids=[9, 7]
        ),
        speculation=api.Speculation(rule=api.ACCEPTANCE_RULE_REJECT),
        logprobs=0,
    )
    run = run_of(request)
    assert (run.prompt, run.max_new_tokens) == ((0, 5, 99), 40)
    assert run.stop_token_ids == {0, 7, 9, 42}, "a string that is a special token is that token"
    assert run.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.75,
        top_k=3,
        seed=7,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=2.0,
        logit_bias=((4, 0.5), (9, -100.0)),
        prompt_length=3,
        min_new_tokens=3,
        end_tokens=(0, 7, 9, 42),
        rule=Rule.REJECT,
        logprobs=0,
    )


MAKERS = GenerationDefaults(0.5, 0.75, 20, 0.25, 1.5, (3, 8), (0,))


def test_what_a_request_does_not_say_is_as_the_models_makers_set_it() -> None:
    """An explicit value counts, even if it is the API's default or zero."""
    made = replace(SERVED, generation=MAKERS)
    own = run_of(ask(), made).sampling
    assert (own.temperature, own.top_p, own.top_k, own.min_p) == (0.5, 0.75, 20, 0.25)
    assert own.repetition_penalty == 1.5
    assert (own.suppress_tokens, own.begin_suppress_tokens) == ((3, 8), (0,))
    off = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    given = ask(sampling=api.Sampling(**off))
    usual = run_of(given).sampling
    assert run_of(given, made).sampling == replace(
        usual, suppress_tokens=(3, 8), begin_suppress_tokens=(0,)
    )
    assert run_of(ask()).sampling == usual, "without makers"
    assert run_of(ask(sampling=api.Sampling(temperature=0)), made).sampling.greedy


def test_a_default_of_zero_makes_a_request_greedy_which_can_be_continued() -> None:
    greedy = replace(
        SERVED,
        description=replace(MODEL, exactness=EXACT),
        generation=GenerationDefaults(temperature=0.0),
    )
    check_resumable(decode_request(ask(), received=(5, 6)), greedy)
    assert run_of(ask(), greedy).sampling.greedy


def test_method_and_confidence_are_part_of_the_shape() -> None:
    wish = {"method": api.DRAFT_METHOD_MEDUSA_LITE, "confidence_threshold": 0.5, "branches": 3}
    shape = run_of(speculation(**wish)).shape
    assert shape == DraftShape(6, 3, 18, Method.MEDUSA_LITE, confidence=0.5)


def test_temperature_0_is_greedy_and_not_the_default() -> None:
    assert run_of(sampling(temperature=0, seed=3)).sampling.greedy


def test_ignored_ends_of_text_leave_only_the_clients_own_stop_tokens() -> None:
    assert run_of(stopping(ignore_eos=True, stop_token_ids=[9])).stop_token_ids == {9}


@pytest.mark.parametrize(
    ("wish", "shape"),
    [
        ({}, DraftShape(6, 4, 16)),
        ({"num_speculative_tokens": 6, "branches": 4}, DraftShape(6, 4, 24)),
        ({"num_speculative_tokens": 3}, DraftShape(3, 4, 12)),
        ({"num_speculative_tokens": 12}, DraftShape(12, 4, 16)),
        ({"num_speculative_tokens": 0}, DraftShape(0, 4, 0)),
        ({"num_speculative_tokens": 5, "branches": 1}, DraftShape.chain(5)),
        ({"branches": 2}, DraftShape(6, 2, 12)),
        ({"num_speculative_tokens": 32, "branches": 64}, DraftShape(32, 64, MAX_NODES)),
        ({"method": 2, "branches": 16}, DraftShape(4, 16, MAX_NODES, Method.MEDUSA_LITE)),
        ({"method": 2, "num_speculative_tokens": 30}, DraftShape(30, 2, 60, Method.MEDUSA_LITE)),
    ],
)
def test_a_wish_for_speculation_becomes_a_shape(wish: dict[str, int], shape: DraftShape) -> None:
    """A request that names the levels gets them, unless it names a schedule."""
    named = "num_speculative_tokens" in wish
    schedule = Schedule.CONSTANT if named else Schedule.GOODPUT
    assert run_of(speculation(**wish)).shape == replace(shape, schedule=schedule)
    for schedule in (Schedule.GOODPUT, Schedule.HEURISTIC):
        found = run_of(speculation(**{**wish, "schedule": schedule.value})).shape
        assert found.schedule is schedule


@pytest.mark.parametrize(
    ("wish", "shape"),
    [
        ({"rule": 1}, DraftShape(32, 4, 64)),
        ({"rule": 2}, DraftShape(4, 4, 8)),
        ({"rule": 3, "num_speculative_tokens": 12}, DraftShape(12, 4, 8)),
        ({"rule": 3, "branches": 6}, DraftShape(4, 6, 24)),
        ({"schedule": 3}, DraftShape(8, 4, 32)),
    ],
)
def test_where_all_that_is_proposed_is_verified_less_is_proposed_unless_more_is_named(
    wish: dict[str, int], shape: DraftShape
) -> None:
    wide = ServedModel(MODEL, DraftShape(32, 4, 64), 1000, {})
    found = run_of(speculation(**wish), wide).shape
    assert replace(found, schedule=Schedule.GOODPUT) == shape


def test_a_chain_longer_than_the_default_is_not_cut_to_the_default() -> None:
    """A request for more levels, where chains are the default, gets one node per level."""
    chains = ServedModel(MODEL, DraftShape.chain(6), 1000, {})
    run = run_of(speculation(num_speculative_tokens=12), chains)
    assert run.shape == replace(DraftShape.chain(12), schedule=Schedule.CONSTANT)
