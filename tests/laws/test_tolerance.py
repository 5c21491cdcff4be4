"""Fields of clients that change no text are accepted, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.orchestrator.http.bodies.decoding import completions
from tandem.orchestrator.http.bodies.parsing import parsed
from tandem.orchestrator.http.bodies.schema import ChatBody, CompletionBody
from tandem.orchestrator.http.bodies.tolerance import NEUTRAL, accepted
from tandem.orchestrator.requests.request import ChatMessage, Conversation
from tests.laws.test_http_decoding import CALLER, HELLO, of_chat, of_completion, refused

SENT_BACK = {  # an answer's `message.model_dump()`
    "role": "assistant",
    "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}],
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": None,
    "reasoning_content": "I think.",
    "id": "msg-1",
}


def test_messages_that_are_sent_back_are_taken() -> None:
    request = of_chat(messages=[HELLO, SENT_BACK, HELLO])
    hello = ChatMessage("user", "Hello")
    answer = ChatMessage("assistant", "Hi", reasoning_content="I think.")
    assert request.prompt == Conversation((hello, answer, hello))


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_value_that_does_nothing_is_as_if_it_were_not_there(name: str) -> None:
    for value in (None, *NEUTRAL[name]):
        assert of_chat(**{name: value}) == of_chat()
        assert of_completion(**{name: value}) == of_completion()
    for value in (2, "other", [1], {"type": "json_object"}):
        (violation,) = refused({"prompt": "", name: value})
        assert violation.field == name
        assert violation.problem == f"is supported only with {accepted(name)}"


def test_a_number_is_not_a_truth() -> None:
    for name, value in (("n", True), ("echo", 0), ("skip_special_tokens", 1)):
        assert [each.field for each in refused({"prompt": "", name: value})] == [name]


def test_nulls_count_as_absent_at_every_level() -> None:
    unknown = {"x": None, "stream_options": {"include_usage": None, "y": None}}
    assert of_chat(messages=[HELLO | {"z": None, "name": None}], **unknown) == of_chat()
    (violation,) = refused({"prompt": None})
    assert str(violation) == "prompt is missing"


def test_what_changes_no_text_is_ignored_and_named() -> None:
    asked = {"store": True, "metadata": {"a": "b"}, "priority": 3, "prompt": "Hello"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body, ignored = parsed(
        CompletionBody, json.dumps(asked | {"stream": True, "stream_options": options}).encode()
    )
    assert ignored == ("metadata", "priority", "store", "stream_options.continuous_usage_stats")
    assert completions(body, CALLER) == (of_completion(),)
    quiet = {"store": False, "metadata": {}, "priority": 0, "prompt": "Hello"}
    assert parsed(CompletionBody, json.dumps(quiet).encode())[1] == ()


@pytest.mark.parametrize("seed", [-1, -(2**63), 0, 2**64 - 1])
def test_every_integer_of_64_bits_is_a_seed(seed: int) -> None:
    assert of_chat(seed=seed).sampling.seed == seed % 2**64


def test_an_effort_is_an_argument_of_the_template() -> None:
    prompt = of_chat(reasoning_effort="low", chat_template_kwargs={"x": 1}).prompt
    assert isinstance(prompt, Conversation)
    assert prompt.template_arguments == {"reasoning_effort": "low", "x": 1}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"stop": 5}, "stop"),
        ({"messages": [HELLO | {"content": 5}]}, "messages[0].content"),
        (
            {"messages": [HELLO | {"content": [{"type": "image_url", "text": ""}]}]},
            "messages[0].content[0].type",
        ),
    ],
)
def test_one_mistake_is_one_sentence(fields: dict[str, Any], place: str) -> None:
    """A field may have many kinds of values."""
    (found,) = refused({"messages": [HELLO]} | fields, ChatBody)
    assert found.field == place
