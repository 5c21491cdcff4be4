"""A request is completed with defaults, or refused naming every field that is wrong; nothing is
ignored.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.request import MAX_STOP_STRINGS, Limits, Order, order
from protos import codec
from protos.errors import InvalidRequest
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.types import MAX_LEVELS, MAX_NODES, DraftShape, ModelDescription, SamplingParams

MODEL = ModelDescription("tiny", "f" * 16, 100, 50, (0, 7), "cpu", "float32")
LIMITS = Limits(MODEL, DraftShape(6, 4, 16), 1000)
SEED = 12345


def tokenise(text: str) -> list[int]:
    """A token a character."""
    return [ord(letter) % 100 for letter in text]


def ordered(request: api.GenerateRequest) -> Order:
    """The order that a request makes."""
    return order(request, "id-1", SEED, LIMITS, tokenise)


def ask(**fields: Any) -> api.GenerateRequest:
    """A good request but for these fields."""
    if not {"text", "token_ids"} & fields.keys():
        fields["text"] = "abc"
    return api.GenerateRequest(**fields)


def violations(request: api.GenerateRequest) -> dict[str, str]:
    """Fields and problems of a refused request."""
    with pytest.raises(InvalidRequest) as refused:
        ordered(request)
    return {violation.field: violation.problem for violation in refused.value.violations}


def sampling(**fields: Any) -> api.GenerateRequest:
    """A request with these sampling fields."""
    return ask(sampling=api.Sampling(**fields))


def stopping(**fields: Any) -> api.GenerateRequest:
    """A request with these stopping fields."""
    return ask(stopping=api.Stopping(**fields))


def speculation(**fields: Any) -> api.GenerateRequest:
    """A request with these speculation fields."""
    return ask(speculation=api.Speculation(**fields))


def ids(*tokens: int) -> api.GenerateRequest:
    """A request of tokens."""
    return ask(token_ids=api.TokenIds(ids=tokens))


BAD = [
    (sampling(temperature=-1), "sampling.temperature", "is -1, below 0 or not finite"),
    (sampling(temperature=math.inf), "sampling.temperature", "is inf, below 0 or not finite"),
    (sampling(temperature=math.nan), "sampling.temperature", "is nan, below 0 or not finite"),
    (sampling(top_p=0), "sampling.top_p", "is 0, not above 0 and at most 1"),
    (sampling(top_p=1.5), "sampling.top_p", "is 1.5, not above 0 and at most 1"),
    (sampling(top_p=math.nan), "sampling.top_p", "is nan, not above 0 and at most 1"),
    (stopping(max_new_tokens=0), "stopping.max_new_tokens", "is 0, below 1"),
    (stopping(stop=["x"] * 17), "stopping.stop", f"has 17 strings, above {MAX_STOP_STRINGS}"),
    (stopping(stop=["x", ""]), "stopping.stop", "has an empty string"),
    (
        speculation(num_speculative_tokens=33),
        "speculation.num_speculative_tokens",
        f"is 33, above {MAX_LEVELS}",
    ),
    (speculation(branches=0), "speculation.branches", f"is 0, not in 1..{MAX_NODES}"),
    (speculation(branches=65), "speculation.branches", f"is 65, not in 1..{MAX_NODES}"),
    (ask(model="huge"), "model", "is 'huge'; served is 'tiny'"),
    (ask(text=""), "text", "is empty"),
    (ids(), "token_ids", "is empty"),
    (api.GenerateRequest(), "prompt", "is empty"),
    (ids(1, 100), "token_ids", "has token 100, above the vocabulary's last, 99"),
    (ask(text="a" * 50), "text", "has 50 tokens, which leave no room in the context of 50"),
    (
        stopping(max_new_tokens=48),
        "stopping.max_new_tokens",
        "is 48: with a prompt of 3 tokens it exceeds the context of 50",
    ),
]
UNSUPPORTED = [
    (sampling(min_p=0.1), "sampling.min_p"),
    (sampling(repetition_penalty=1.1), "sampling.repetition_penalty"),
    (sampling(repetition_penalty=0), "sampling.repetition_penalty"),
    (sampling(presence_penalty=-0.5), "sampling.presence_penalty"),
    (sampling(frequency_penalty=0.5), "sampling.frequency_penalty"),
    (sampling(logit_bias={3: 1.0}), "sampling.logit_bias"),
    (stopping(min_new_tokens=1), "stopping.min_new_tokens"),
    (ask(logprobs=0), "logprobs"),
    (speculation(drafter="fast"), "speculation.drafter"),
    (speculation(rule=api.ACCEPTANCE_RULE_REJECT), "speculation.rule"),
    (speculation(rule=api.ACCEPTANCE_RULE_TOP1), "speculation.rule"),
    (speculation(rule=99), "speculation.rule"),
]


@pytest.mark.parametrize(("request_", "field", "problem"), BAD)
def test_a_bad_field_is_named_with_its_value_and_its_limit(
    request_: api.GenerateRequest, field: str, problem: str
) -> None:
    assert violations(request_) == {field: problem}


@pytest.mark.parametrize(("request_", "field"), UNSUPPORTED)
def test_what_is_not_implemented_is_refused_by_name(
    request_: api.GenerateRequest, field: str
) -> None:
    found = violations(request_)
    assert list(found) == [field]
    assert found[field].startswith("is not supported")


def test_a_field_that_is_off_asks_for_nothing() -> None:
    off = api.Sampling(
        min_p=0, repetition_penalty=1, presence_penalty=0, frequency_penalty=0, top_k=0, top_p=1
    )
    rule = api.Speculation(rule=api.ACCEPTANCE_RULE_MATCH)
    assert ordered(
        ask(sampling=off, speculation=rule, stopping=api.Stopping(min_new_tokens=0))
    ) == ordered(ask())


def test_every_bad_field_is_named_at_once() -> None:
    found = violations(
        ask(
            model="huge",
            sampling=api.Sampling(temperature=-1, top_p=2, min_p=0.5),
            stopping=api.Stopping(max_new_tokens=0, stop=[""]),
            speculation=api.Speculation(num_speculative_tokens=99),
            logprobs=3,
        )
    )
    assert set(found) == {
        "model",
        "sampling.temperature",
        "sampling.top_p",
        "sampling.min_p",
        "stopping.max_new_tokens",
        "stopping.stop",
        "speculation.num_speculative_tokens",
        "logprobs",
    }


def test_a_bad_prompt_is_named_beside_other_bad_fields() -> None:
    request = ask(token_ids=api.TokenIds(ids=[100]), sampling=api.Sampling(temperature=-1))
    assert set(violations(request)) == {"sampling.temperature", "token_ids"}


def test_a_text_that_can_never_fit_is_refused_before_it_is_tokenised() -> None:
    def never(text: str) -> list[int]:
        raise AssertionError("tokenised")

    with pytest.raises(InvalidRequest, match="text has 1001 bytes, above the 1000"):
        order(ask(text="x" * 1001), "id", SEED, LIMITS, never)


@pytest.mark.parametrize("request_id", ["ä", "a\nb", "a\0b", "x" * 129])
def test_a_request_id_that_cannot_travel_is_refused(request_id: str) -> None:
    with pytest.raises(InvalidRequest, match="request_id"):
        order(ask(), request_id, SEED, LIMITS, tokenise)


def test_a_request_of_a_prompt_alone_gets_every_default() -> None:
    run = ordered(ask(text="abc")).run
    assert (run.request_id, list(run.prompt), list(run.completion)) == ("id-1", tokenise("abc"), [])
    assert codec.decode_sampling(run.sampling) == SamplingParams(1.0, 0, 1.0, SEED)
    assert run.max_new_tokens == 47, "all that the context has room for, as that is less than 128"
    assert list(run.stop_token_ids) == [0, 7]
    assert codec.decode_shape(run.shape) == LIMITS.default_shape


def test_the_default_length_is_128_where_there_is_room() -> None:
    roomy = Limits(ModelDescription("tiny", "", 100, 4096, (), "", ""), LIMITS.default_shape, 1000)
    assert order(ask(), "", SEED, roomy, tokenise).run.max_new_tokens == 128


def test_what_is_asked_for_is_ordered() -> None:
    request = api.GenerateRequest(
        token_ids=api.TokenIds(ids=[0, 99]),
        model="tiny",
        sampling=api.Sampling(temperature=0.5, top_p=0.5, top_k=3, seed=0),
        stopping=api.Stopping(max_new_tokens=48, stop=["x", "yz"], stop_token_ids=[9, 7]),
    )
    result = ordered(request)
    assert result.stop == ("x", "yz")
    assert list(result.run.prompt) == [0, 99]
    assert codec.decode_sampling(result.run.sampling) == SamplingParams(0.5, 3, 0.5, 0)
    assert result.run.max_new_tokens == 48
    assert list(result.run.stop_token_ids) == [0, 7, 9]


def test_temperature_0_is_greedy_and_not_the_default() -> None:
    assert codec.decode_sampling(ordered(sampling(temperature=0, seed=3)).run.sampling).greedy


def test_ignored_ends_of_text_leave_only_the_clients_own_stop_tokens() -> None:
    assert list(ordered(stopping(ignore_eos=True, stop_token_ids=[9])).run.stop_token_ids) == [9]


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
    ],
)
def test_a_wish_for_speculation_becomes_a_shape(wish: dict[str, int], shape: DraftShape) -> None:
    assert codec.decode_shape(ordered(speculation(**wish)).run.shape) == shape


def test_a_chain_longer_than_the_default_is_not_cut_to_the_default() -> None:
    """Where chains are the default, who asks for more levels gets a node for each: nothing is
    silently ignored.
    """
    chains = Limits(MODEL, DraftShape.chain(6), 1000)
    run = order(speculation(num_speculative_tokens=12), "id", SEED, chains, tokenise).run
    assert codec.decode_shape(run.shape) == DraftShape.chain(12)
