"""Answers that have to call a tool, and calls of strict tools, follow their schemas."""

from __future__ import annotations

from typing import Any

import pytest

from tandem import models
from tandem.orchestrator.requests.chat import NO_TEMPLATE, ChatTemplate, Formats
from tandem.orchestrator.requests.message import MessageStream
from tandem.orchestrator.requests.request import ChatMessage, Conversation, Request, Sampling, Tool
from tandem.orchestrator.requests.tool_grammars import grammar_of, with_calls
from tandem.orchestrator.requests.tools import FORMATS
from tandem.protos.errors import InvalidRequest
from tandem.protos.grammar import Grammar, GrammarKind
from tandem.protos.matching import GrammarCompiler
from tandem.protos.tokenizer import tokenizer_of

END, PAD = 0, "<|pad|>"
TOKENIZER = tokenizer_of(models.TARGET)
COMPILER = GrammarCompiler(lambda: TOKENIZER, (END,))
SCHEMA = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"type": "string", "maxLength": 5}},
}
TOOLS = (Tool("weather", "of a city", SCHEMA, strict=True), Tool("add"))
WEATHER = '{"name": "weather", "arguments": {"city": "Oslo"}}'
LONG = '{"name": "weather", "arguments": {"city": "Aarhus"}}'
ADD = '{"name": "add", "arguments": {"a": 1}}'


def chat(**options: Any) -> Conversation:
    return Conversation((ChatMessage("user", "Hello"),), **{"tools": TOOLS} | options)


def admits(conversation: Conversation, text: str, form: str = "hermes") -> bool:
    """Return whether a text may be a whole answer."""
    grammar = grammar_of(conversation, FORMATS[form])
    assert grammar
    matcher = COMPILER.compiled(grammar)
    ids = [*TOKENIZER.encode(text, add_special_tokens=False).ids, END]
    return all(matcher.consume_token(token) for token in ids)


def marked(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


@pytest.mark.parametrize(
    ("options", "text", "admitted"),
    [
        ({"tool_choice": "required"}, WEATHER, True),
        ({"tool_choice": "required"}, f"{ADD}\n{WEATHER}", True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, f"{ADD}\n{WEATHER}", False),
        ({"tool_choice": "required"}, "Hello", False),
        ({"tool_choice": "required"}, "", False),
        ({"tool_choice": "required"}, LONG, False),
        ({"tool_choice": "add"}, ADD, True),
        ({"tool_choice": "add"}, WEATHER, False),
        ({"tool_choice": "add"}, f"{ADD}\n{ADD}", False),
        ({}, "Hello <b> there.\n", True),
        ({}, f"Well.\n{marked(WEATHER)}\n{marked(ADD)} Done.", True),
        ({}, f"Well. {marked(LONG)}", False),
        ({}, "Well. <tool_call>{", False),
    ],
)
def test_a_grammar_admits_calls_of_the_tools_and_no_others(
    options: dict[str, Any], text: str, admitted: bool
) -> None:
    assert admits(chat(**options), text) is admitted


LLAMA = WEATHER.replace("arguments", "parameters")
TOO_LONG = LLAMA.replace("Oslo", "Aarhus")
TAG = "<|python_tag|>"


@pytest.mark.parametrize("form", ["llama3", "json"])
@pytest.mark.parametrize(
    ("text", "admitted"),
    [
        ("", True),
        ('Hello.\n{ x }\n{"a": [1]}', True),
        (LLAMA, True),
        (f"Well.\n{LLAMA}; {WEATHER}\nDone.", True),
        (f"[{WEATHER}, {ADD}]", True),
        ('{"type": "function","name":"weather","parameters":\n{"city": "Oslo"} }', True),
        ('{"name": "sum", "parameters": {"city": 1}}', True),
        ('{"name": "add", "parameters": {"city": "of any length"}}', True),
        (f"{TAG}{LLAMA}", True),
        (f"{TAG}{TOO_LONG}", False),
        (TOO_LONG, False),
        (f"Well.\n[{WEATHER}, {LONG}]", False),
        ('{"type": "function", "name": "weather", "arguments": {}}', False),
        (LLAMA.replace("}}", '}, "x": 1}'), False),
    ],
)
def test_without_markers_arguments_follow_the_head_of_a_call(
    form: str, text: str, admitted: bool
) -> None:
    assert admits(chat(), text, form) is admitted


def test_a_marker_that_is_a_special_token_may_be_in_a_text() -> None:
    number = TOKENIZER.token_to_id(PAD)
    grammar = grammar_of(chat(), FORMATS["llama3"], {TAG: number})
    assert grammar and f"<[{number}]>" in grammar.text
    ids = TOKENIZER.encode(f"Well.{PAD}{LLAMA}", add_special_tokens=False).ids
    for special in ({}, {TAG: number}):
        grammar = grammar_of(chat(), FORMATS["llama3"], special)
        assert grammar
        matcher = COMPILER.compiled(grammar)
        assert all(matcher.consume_token(token) for token in ids) is bool(special)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (LLAMA, 1),
        (f"[{LLAMA}, {ADD}]", 2),
        ('{"parameters": {"city": "Aarhus"}, "name": "weather"}', 0),
        ('{"arguments": {"a": 1}, "name": "add"}', 1),
    ],
)
def test_a_call_of_a_strict_tool_begins_as_its_grammar_has_it(text: str, calls: int) -> None:
    """No grammar applies to the arguments of such a call, and the text stays content."""
    template = ChatTemplate("", {}, Formats(tools="llama3"))
    stream = MessageStream(template.reading(chat(), ""), "id")
    stream.push(text)
    stream.finish()
    assert len(stream.message.tool_calls) == calls
    assert stream.message.content == ("" if calls else text)


def test_an_answer_is_free_where_no_call_is_required_and_no_tool_is_strict() -> None:
    request = Request(chat(tools=TOOLS[1:]))
    assert with_calls(request, NO_TEMPLATE) == request
    assert with_calls(Request("Hello"), NO_TEMPLATE) == Request("Hello")


def test_strict_tools_are_written_as_the_template_for_tools_has_calls() -> None:
    """A model may have a template for tools beside its template for plain chats, which has no
    tools.
    """
    for_tools = ChatTemplate("{{ tools }}<tool_call>", {})
    template = ChatTemplate("{{ messages }}", {}, for_tools=for_tools)
    assert template.tools is None
    conversation = chat()
    assert conversation.tools[0].strict and conversation.tool_choice == "auto"
    asked = with_calls(Request(conversation), template)
    assert asked.sampling.grammar == grammar_of(conversation, FORMATS["hermes"])


def test_strict_tools_need_a_format_in_which_calls_can_be_told() -> None:
    template = ChatTemplate("", {}, Formats(tools="mistral"))
    problem = r"messages.tools\[0\].strict cannot be true with tool_choice auto"
    with pytest.raises(InvalidRequest, match=problem):
        with_calls(Request(chat()), template)


@pytest.mark.parametrize(
    ("conversation", "sampling", "problem"),
    [
        (chat(tool_choice="sum"), Sampling(), "tool_choice is 'sum', which is none of the tools"),
        (chat(tools=(), tool_choice="required"), Sampling(), "tool_choice needs tools"),
        (
            chat(tool_choice="required"),
            Sampling(grammar=Grammar(GrammarKind.JSON_OBJECT)),
            "tools with strict or required calls cannot be combined with a grammar",
        ),
    ],
)
def test_what_cannot_be_asked_of_calls_is_refused(
    conversation: Conversation, sampling: Sampling, problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        template = ChatTemplate("", {}, Formats(tools="llama3"))
        with_calls(Request(conversation, sampling=sampling), template)
