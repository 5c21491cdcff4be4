"""An invalid field is refused with its name, its value and its limit; no field is ignored."""

from __future__ import annotations

import math

import pytest

from tandem.orchestrator.frontend.messages import MAX_ARGUMENTS_BYTES, decode_prompt, decode_request
from tandem.orchestrator.requests.checks import (
    MAX_STOP_STRINGS,
    check_resumable,
)
from tandem.protos.errors import InvalidRequest
from tandem.protos.types import MAX_LEVELS, MAX_NODES
from tandem.v1 import orchestrator_pb2 as api
from tests.laws.requests import (
    SERVED,
    ask,
    ids,
    run_of,
    sampling,
    speculation,
    stopping,
    violations,
)

LAST = "above the vocabulary's last token, 99"
MESSAGES = {"sampling": api.Sampling, "stopping": api.Stopping, "speculation": api.Speculation}
FIELDS = [
    ("sampling.temperature", -1, "is -1, below 0 or not finite"),
    ("sampling.temperature", math.inf, "is inf, below 0 or not finite"),
    ("sampling.temperature", math.nan, "is nan, below 0 or not finite"),
    ("sampling.top_p", 0, "is 0, not above 0 and at most 1"),
    ("sampling.top_p", 1.5, "is 1.5, not above 0 and at most 1"),
    ("sampling.top_p", math.nan, "is nan, not above 0 and at most 1"),
    ("sampling.min_p", 1.5, "is 1.5, not in 0..1"),
    ("sampling.min_p", math.nan, "is nan, not in 0..1"),
    ("sampling.repetition_penalty", 0, "is 0, not in 0.01..100"),
    ("sampling.presence_penalty", -2.5, "is -2.5, not in -2..2"),
    ("sampling.frequency_penalty", 3, "is 3, not in -2..2"),
    ("sampling.logit_bias[3]", {3: 101}, "is 101, not in -100..100"),
    ("sampling.logit_bias", {100: 1}, f"has token 100, {LAST}"),
    ("stopping.max_new_tokens", 0, "is 0, but must be at least 1 without echo or prompt_logprobs"),
    (
        "stopping.max_new_tokens",
        48,
        "is 48, after a prompt of 3 tokens; this model's maximum context length is 50 tokens",
    ),
    ("stopping.min_new_tokens", 48, "is 48, above max_new_tokens, 47"),
    ("stopping.stop", ["x"] * 17, f"has 17 strings, above {MAX_STOP_STRINGS}"),
    ("stopping.stop", ["x", ""], "has an empty string"),
    ("stopping.stop", ["x", "y" * 1025], "has a string of 1025 characters, above 1024"),
    ("stopping.stop_token_ids", [3] * 4097, "has 4097 tokens, above 4096"),
    ("stopping.stop_token_ids", [3, 100], f"has token 100, {LAST}"),
    ("speculation.num_speculative_tokens", 33, f"is 33, above {MAX_LEVELS}"),
    ("speculation.branches", 0, f"is 0, not in 1..{MAX_NODES}"),
    ("speculation.branches", 65, f"is 65, not in 1..{MAX_NODES}"),
    ("speculation.drafter", "fast", "is not supported"),
    ("speculation.rule", 99, "is 99, not one of MATCH, REJECT, TOP1"),
    ("speculation.method", 9, "is 9, not one of TREE, MEDUSA_LITE, SUFFIX"),
    ("speculation.schedule", 7, "is 7, not one of GOODPUT, CONSTANT, HEURISTIC"),
    ("speculation.confidence_threshold", 1.5, "is 1.5, not in 0..1"),
]
REQUESTS = [
    (ask(model="huge"), "model", "is 'huge', but the served model is 'tiny'"),
    (ask(text=""), "text", "is empty"),
    (ids(), "token_ids", "is empty"),
    (api.GenerateRequest(), "prompt", "is empty"),
    (ids(1, 100), "token_ids", f"has token 100, {LAST}"),
    (
        ask(text="a" * 50),
        "text",
        "has 50 tokens, which leave no room for an answer; "
        "this model's maximum context length is 50 tokens",
    ),
    (ask(logprobs=21), "logprobs", "is 21, above 20"),
    (ask(prompt_logprobs=21), "prompt_logprobs", "is 21, above 20"),
    (ask(logprobs=21, echo=True), "logprobs", "is 21, above 20"),
    (
        stopping(min_new_tokens=5, max_new_tokens=4),
        "stopping.min_new_tokens",
        "is 5, above max_new_tokens, 4",
    ),
    (
        speculation(branches=8, num_speculative_tokens=16, method=api.DRAFT_METHOD_MEDUSA_LITE),
        "speculation.branches",
        f"is 8, times num_speculative_tokens 16: 128 nodes, above {MAX_NODES}",
    ),
    (
        speculation(confidence_threshold=0.5, method=api.DRAFT_METHOD_NGRAM),
        "speculation.confidence_threshold",
        "is 0.5, but the method SUFFIX does not use it",
    ),
]


@pytest.mark.parametrize(("field", "value", "problem"), FIELDS)
def test_a_bad_field_is_named_with_its_value_and_its_limit(
    field: str, value: object, problem: str
) -> None:
    part, name = field.partition("[")[0].split(".")
    assert violations(ask(**{part: MESSAGES[part](**{name: value})})) == {field: problem}


@pytest.mark.parametrize(("request_", "field", "problem"), REQUESTS)
def test_so_are_fields_that_are_bad_together_and_bad_prompts(
    request_: api.GenerateRequest, field: str, problem: str
) -> None:
    assert violations(request_) == {field: problem}


def test_a_field_that_is_off_asks_for_nothing() -> None:
    off = api.Sampling(
        min_p=0, repetition_penalty=1, presence_penalty=0, frequency_penalty=0, top_k=0, top_p=1
    )
    rule = api.Speculation(rule=api.ACCEPTANCE_RULE_MATCH)
    assert run_of(
        ask(sampling=off, speculation=rule, stopping=api.Stopping(min_new_tokens=0))
    ) == run_of(ask())


def test_every_bad_field_is_named_at_once() -> None:
    request = ask(
        model="huge",
        token_ids=api.TokenIds(ids=[100]),
        sampling=api.Sampling(temperature=-1, top_p=2, min_p=-0.5),
        stopping=api.Stopping(max_new_tokens=0, stop=[""]),
        speculation=api.Speculation(num_speculative_tokens=99),
        logprobs=30,
    )
    in_sampling = {f"sampling.{name}" for name in ("temperature", "top_p", "min_p")}
    others = {"model", "token_ids", "speculation.num_speculative_tokens", "logprobs"}
    expected = in_sampling | others | {"stopping.max_new_tokens", "stopping.stop"}
    assert set(violations(request)) == expected


def test_a_prompt_alone_may_fill_the_context() -> None:
    full = {"text": "a" * 50, "stopping": api.Stopping(max_new_tokens=0)}
    assert run_of(ask(echo=True, logprobs=3, **full)).prompt_logprobs == 3
    assert run_of(ask(echo=True, **full)).prompt_logprobs is None
    assert run_of(ask(prompt_logprobs=0, **full)).max_new_tokens == 0


def test_more_log_probabilities_than_an_answer_can_hold_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem.orchestrator.requests.options.MAX_PROMPT_LOGPROBS", 12)
    assert run_of(ask(prompt_logprobs=3)).prompt_logprobs == 3
    problem = "is 4: 15 log-probabilities for 3 prompt tokens, above 12"
    assert violations(ask(prompt_logprobs=4)) == {"prompt_logprobs": problem}
    assert violations(ask(logprobs=4, echo=True)) == {"logprobs": problem}


def test_a_text_that_can_never_fit_is_refused_before_it_is_tokenised() -> None:
    def never(text: str) -> tuple[int, ...]:
        raise AssertionError("tokenised")

    with pytest.raises(InvalidRequest, match=r"text has 1001 bytes; .* or at most 1000 bytes"):
        run_of(ask(text="x" * 1001), tokenise=never)


@pytest.mark.parametrize("request_id", ["ä", "a\nb", "a\0b", "x" * 129])
def test_a_request_id_that_cannot_travel_is_refused(request_id: str) -> None:
    with pytest.raises(InvalidRequest, match="request_id"):
        run_of(ask(request_id=request_id))


def test_an_answer_is_continued_from_its_tokens_alone_and_by_the_seed_that_drew_them() -> None:
    check_resumable(decode_request(sampling(seed=3), resume_from=2, received=(5, 6)), SERVED)
    check_resumable(decode_request(sampling(temperature=0), received=(5, 6)), SERVED)
    with pytest.raises(InvalidRequest, match="resume_from is 7, but received has 0 tokens"):
        check_resumable(decode_request(sampling(seed=3), resume_from=7), SERVED)
    with pytest.raises(InvalidRequest, match=r"received needs sampling.seed, or temperature 0"):
        check_resumable(decode_request(ask(), received=(5, 6)), SERVED)


def test_large_template_arguments_are_refused_before_they_are_decoded() -> None:
    request = api.GenerateRequest()
    request.messages.template_arguments["x"] = "y" * MAX_ARGUMENTS_BYTES
    size = request.messages.template_arguments.ByteSize()
    with pytest.raises(InvalidRequest) as refused:
        decode_prompt(request)
    assert [str(each) for each in refused.value.violations] == [
        f"messages.template_arguments have {size} bytes, above {MAX_ARGUMENTS_BYTES}"
    ]
