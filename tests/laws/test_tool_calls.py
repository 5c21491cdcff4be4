"""Tool calls and reasoning are found in a text, whatever pieces it comes in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.orchestrator.requests.message import Message, MessageStream, Reading
from tandem.orchestrator.requests.tools import FORMATS, calls_in, format_of

TOOLS = ("weather", "add")
CITY = {"city": 'Zürich "]}</tool_call>', "days": [1, {"x": None}]}
ARGUMENTS: tuple[dict[str, Any], ...] = (CITY, {"a": 1.5, "b": -2}, {})
NAMES = ("weather", "add", "weather")


def written(name: str, arguments: object, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def hermes(calls: list[str]) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


WRITERS = {
    "hermes": hermes,
    "mistral": lambda calls: f"[TOOL_CALLS][{', '.join(calls)}]",
    "llama3": "; ".join,
    "json": "\n".join,
}


def read(text: str, size: int, form: str, **reading: Any) -> Message:
    """Return the message read from pieces of this size."""
    stream = MessageStream(Reading(FORMATS[form], TOOLS, **reading), "id")
    parts = []
    for place in range(0, len(text), size):
        parts += stream.push(text[place : place + size])
    parts += stream.finish()
    found = Message()
    for part in parts:
        found.add(part)
    assert found == stream.message
    return found


def read_in_all_ways(text: str, form: str, **reading: Any) -> Message:
    """Return the message, after a check that it is the same for pieces of every size."""
    whole = read(text, len(text) or 1, form, **reading)
    for size in range(1, len(text) + 1):
        assert read(text, size, form, **reading) == whole, size
    return whole


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("before", "content"), [("", ""), ("Let me\n\nsee. \n", "Let me\n\nsee.")])
@pytest.mark.parametrize("form", FORMATS)
def test_calls_are_found_in_text_of_every_format(
    form: str, before: str, content: str, count: int
) -> None:
    calls = [written(name, each) for name, each in zip(NAMES, ARGUMENTS, strict=True)][:count]
    found = read_in_all_ways(before + WRITERS[form](calls), form)
    assert found.content == content
    assert [call.name for call in found.tool_calls] == list(NAMES[:count])
    assert [json.loads(call.arguments) for call in found.tool_calls] == list(ARGUMENTS[:count])
    assert len({call.id for call in found.tool_calls}) == count
    assert all(len(call.id) == 9 and call.id.isalnum() for call in found.tool_calls)


@pytest.mark.parametrize("form", FORMATS)
def test_text_between_and_behind_calls_is_content(form: str) -> None:
    call = WRITERS[form]([written("add", {})])
    found = read_in_all_ways(f"{call}\nand\n{call}\nor so. ", form)
    assert (found.content, len(found.tool_calls)) == ("andor so. ", 2)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", 'Well. <tool_call>{"name": "add", "arguments": {"a": 1}}'),
        ("mistral", 'Well. [TOOL_CALLS]add[ARGS]{"a": 1}'),
        ("mistral", 'Well. [TOOL_CALLS] add {"a": 1}'),
        ("llama3", 'Well. <|python_tag|>{"name": "add", "parameters": {"a": 1}}'),
        ("llama3", 'Well.\n  {"type": "function", "name": "add", "parameters": {"a": 1}}'),
        ("json", 'Well.\n[{"name": "add", "arguments": "{\\"a\\": 1}"}]'),
    ],
)
def test_models_write_calls_in_several_ways(form: str, text: str) -> None:
    found = read_in_all_ways(text, form)
    assert found.content == "Well."
    assert [(call.name, call.arguments) for call in found.tool_calls] == [("add", '{"a": 1}')]


def test_a_tool_that_is_not_known_is_called_behind_a_marker_alone() -> None:
    call = written("other", {})
    assert read_in_all_ways(hermes([call]), "hermes").tool_calls[0].name == "other"
    assert read_in_all_ways(call, "json") == Message(content=call)


def test_of_calls_that_may_not_be_parallel_the_first_one_counts() -> None:
    calls = [written("add", {"a": 1}), written("add", {"a": 2})]
    found = read_in_all_ways(hermes(calls), "hermes", parallel=False)
    assert [call.arguments for call in found.tool_calls] == ['{"a": 1}']


PIECES = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<", "add", "\n"),
    *(" ", "{", "}", "[", "]", '"', "\\", ",", ";", '{"name": "add"', '"arguments": {}', "NaN"),
    *('{"name": "add", "arguments": {"a": 1}}', "<think>", "</think>", "Well. ", "{}", "\ud7ff"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@pytest.mark.parametrize("form", FORMATS)
@given(text=TEXTS, cut=st.integers(1, 9), reasoning=st.booleans(), begun=st.booleans())
def test_any_text_is_read_in_one_way(
    form: str, text: str, cut: int, reasoning: bool, begun: bool
) -> None:
    options = {"reasoning": reasoning, "reasoning_begun": reasoning and begun}
    found = read(text, cut, form, **options)
    assert found == read(text, len(text) or 1, form, **options)
    if not found.tool_calls and not reasoning:
        assert found.content == text, "nothing is lost"


@pytest.mark.parametrize(
    "value",
    [
        *("[]", "{}", "[1]", '{"name": 1}', '{"name": ""}', '{"name": "a b"}', "nonsense"),
        *('{"name": "f", "arguments": 1}', '{"name": "f", "arguments": "[]"}'),
        *('{"name": "f", "arguments": {"a": NaN}}', '{"name": "f", "arguments": {"a": 1e999}}'),
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "f", "arguments": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
    ],
)
def test_what_is_no_call_is_none(value: str) -> None:
    assert calls_in(value) == ()


@pytest.mark.parametrize(
    ("text", "begun", "message"),
    [
        ("<think>\nHm. \n</think>\n\nYes. ", False, ("Hm.", "Yes. ")),
        (" \n<think>Hm</think>Yes", False, ("Hm", "Yes")),
        ("\nHm </ think></think>\nYes", True, ("Hm </ think>", "Yes")),
        ("Hm", True, ("Hm", "")),
        ("<think></think>\n\nYes", False, ("", "Yes")),
        ("Yes <think>no</think>", False, ("", "Yes <think>no</think>")),
        (" <thin", False, ("", " <thin")),
        ("a < b </thi", True, ("a < b </thi", "")),
    ],
)
def test_reasoning_stands_at_the_beginning(
    text: str, begun: bool, message: tuple[str, str]
) -> None:
    found = read_in_all_ways(text, "hermes", reasoning=True, reasoning_begun=begun)
    assert (found.reasoning_content, found.content) == message
    assert read_in_all_ways(text, "hermes").reasoning_content == ""


def test_calls_are_no_part_of_reasoning() -> None:
    call = hermes([written("add", {})])
    found = read_in_all_ways(f"<think>{call}</think>\n{call}", "hermes", reasoning=True)
    assert (found.reasoning_content, found.content, len(found.tool_calls)) == (call, "", 1)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ('{"name": <function-name>}</tool_call> <tool_call>', "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("{{ '<|python_tag|>' }}", "llama3"),
        ('\'{"name": "\' + x + \'", "parameters": \'', "llama3"),
        ('{{ "{\\"name\\": 1, \\"arguments\\": 2}" }}', "json"),
        ("<tool_call><function=f>", None),
        ("{{ tools }}", None),
    ],
)
def test_the_format_is_that_of_the_template(template: str, form: str | None) -> None:
    found = format_of(template)
    assert (found and found.name) == form
