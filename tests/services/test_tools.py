"""Tools over HTTP, as the official client uses them, in each format in which models write calls."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tandem.orchestrator.requests.chat import Formats
from tandem.orchestrator.requests.tools import FORMATS
from tests.services.saying import CALL, QUESTION, TEMPLATE, TOOL, WRITTEN, Saying, saying, says


@pytest.mark.parametrize("form", FORMATS)
async def test_a_model_calls_tools_and_says_what_came_of_it(form: str) -> None:
    """In some formats the marker is a special token, which has no text otherwise."""
    special = FORMATS[form].markers
    async with saying(says(form), TEMPLATE, Formats(form), special) as model:
        choice = await model.chat([QUESTION], tools=[TOOL])
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
        first, second = choice.message.tool_calls
        assert (first.function.name, second.function.name) == ("weather", "weather")
        assert json.loads(first.function.arguments) == {"city": "Zürich"}
        assert first.type == "function" and first.id != second.id
        await assert_streamed(model)
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in (first, second)
        ]
        answered = await model.chat(
            [QUESTION, choice.message.model_dump(), *results], tools=[TOOL], tool_choice="auto"
        )
        assert (answered.finish_reason, answered.message.content) == ("stop", "It rains.")
        assert answered.message.tool_calls is None
        assert "called weather with Zürich" in model.sayer.prompts[-1]


async def assert_streamed(model: Saying) -> None:
    """Check that a stream has the same calls."""
    stream = await model.chat([QUESTION], tools=[TOOL], stream=True)
    pieces = [chunk.choices[0] async for chunk in stream]
    called = [call for piece in pieces for call in piece.delta.tool_calls or ()]
    assert [call.index for call in called] == [0, 1]
    assert len({call.id for call in called}) == 2
    assert {call.function.name for call in called} == {"weather"}
    assert [json.loads(call.function.arguments)["city"] for call in called] == ["Zürich"] * 2
    assert not any(piece.delta.content and piece.delta.tool_calls for piece in pieces)
    assert "".join(piece.delta.content or "" for piece in pieces) == "Let me see."
    assert pieces[-1].finish_reason == "tool_calls"
    assert not any(piece.finish_reason for piece in pieces[:-1])


async def test_the_official_clients_own_reader_of_streams_finds_the_calls(hermes: Saying) -> None:
    tool = TOOL | {"function": TOOL["function"] | {"strict": False}}
    chat = hermes.client.chat.completions
    async with chat.stream(model="said", messages=[QUESTION], tools=[tool]) as stream:
        found = (await stream.get_final_completion()).choices[0]
    assert [call.function.name for call in found.message.tool_calls] == ["weather"] * 2
    assert found.message.content == "Let me see."


async def test_only_the_first_call_counts_where_they_may_not_be_parallel(hermes: Saying) -> None:
    choice = await hermes.chat([QUESTION], tools=[TOOL], parallel_tool_calls=False)
    assert len(choice.message.tool_calls) == 1


async def test_without_tools_or_with_the_choice_of_none_calls_are_text(hermes: Saying) -> None:
    for options in ({}, {"tools": [TOOL], "tool_choice": "none"}, {"tools": []}):
        choice = await hermes.chat([QUESTION], **options)
        assert choice.message.content == f"Let me see.{WRITTEN['hermes']}"
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        assert "weather" not in hermes.sayer.prompts[-1]


async def test_what_is_no_call_is_content_and_nothing_is_lost(hermes: Saying) -> None:
    text = 'Well.\n<tool_call>\n{"name": "weather", "arguments": {"city": }}\n</tool_call>'
    hermes.sayer.says = lambda _: text
    choice = await hermes.chat([QUESTION], tools=[TOOL])
    assert (choice.finish_reason, choice.message.content) == ("stop", text)
    cut = await hermes.chat([QUESTION], tools=[TOOL], max_tokens=9)
    assert cut.finish_reason == "length" and text.startswith(cut.message.content)


async def test_log_probabilities_are_of_all_tokens_but_the_last(hermes: Saying) -> None:
    """In a stream, too, a call takes many chunks and its tokens have log-probabilities; the last
    token is the end of text.
    """
    options: Any = {"tools": [TOOL], "logprobs": True}
    choice = await hermes.chat([QUESTION], **options)
    tokens = [each.token for each in choice.logprobs.content]
    content = b"".join(bytes(each.bytes) for each in choice.logprobs.content)
    assert content.decode() == f"Let me see.{WRITTEN['hermes']}"
    stream = await hermes.chat([QUESTION], stream=True, **options)
    found = [piece.choices[0].logprobs async for piece in stream]
    assert [each.token for part in found if part for each in part.content] == tokens


async def test_reasoning_is_apart_from_the_answer_and_is_sent_back() -> None:
    text = "<think>\nIt is in Europe.\n</think>\n\nFine. "
    async with saying(lambda _: text, f"{TEMPLATE}{{# <think> #}}") as model:
        choice = await model.chat([QUESTION])
        message = choice.message
        assert (message.reasoning_content, message.content) == ("It is in Europe.", "Fine. ")
        await model.chat([QUESTION, message.model_dump(), QUESTION])
        assert "Fine. It is in Europe." in model.sayer.prompts[-1]
        deltas = [
            piece.choices[0].delta async for piece in await model.chat([QUESTION], stream=True)
        ]
        thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        content = "".join(delta.content or "" for delta in deltas)
        assert (thought, content) == (message.reasoning_content, message.content)


async def test_reasoning_may_begin_in_the_prompt() -> None:
    opened = TEMPLATE + "{% if add_generation_prompt %}assistant:<think>\n{% endif %}"
    async with saying(lambda _: "Hm.\n</think>Fine.", opened) as model:
        message = (await model.chat([QUESTION])).message
        assert (message.reasoning_content, message.content) == ("Hm.", "Fine.")


async def test_a_final_message_is_continued() -> None:
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    async with saying(lambda _: " cat", template) as model:
        begun = [QUESTION, {"role": "assistant", "content": "A"}]
        for more in ({}, {"add_generation_prompt": False}):
            await model.chat(begun, extra_body={"continue_final_message": True} | more)
            assert model.sayer.prompts[-1] == f"<{QUESTION['content']}><A"
        with pytest.raises(openai.BadRequestError, match="needs add_generation_prompt false"):
            both = {"continue_final_message": True, "add_generation_prompt": True}
            await model.chat(begun, extra_body=both)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [TOOL | {"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
        ),
        ({"messages": [QUESTION | {"tool_calls": []}, {"role": "user"}]}, "messages[1]"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[]"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_by_its_name(
    hermes: Saying, options: dict[str, Any], param: str
) -> None:
    body = {"messages": [QUESTION]} | options
    with pytest.raises(openai.BadRequestError) as refused:
        await hermes.client.chat.completions.create(model="said", **body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_a_call_that_has_to_come_is_asked_for_by_a_grammar(
    hermes: Saying, choice: Any
) -> None:
    """The scripted model obeys the grammar, and calls are read in the form that the grammar
    prescribes.
    """
    hermes.sayer.says = lambda _: CALL
    found = await hermes.chat([QUESTION], tools=[TOOL], tool_choice=choice)
    assert (found.finish_reason, found.message.content) == ("tool_calls", None)
    (call,) = found.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Zürich"}
    grammar = hermes.sayer.grammars[-1]
    assert grammar and "weather" in grammar.text
    strict = TOOL | {"function": TOOL["function"] | {"strict": True}}
    await hermes.chat([QUESTION], tools=[strict])
    assert (free := hermes.sayer.grammars[-1]) and "<tool_call>" in free.text
    await hermes.chat([QUESTION], tools=[TOOL])
    assert hermes.sayer.grammars[-1] is None
