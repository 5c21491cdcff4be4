"""Tools over gRPC, as the Python client has them, and answers with calls whose stream broke."""

from __future__ import annotations

from typing import Any

import pytest

from tandem import AsyncClient
from tandem.orchestrator.requests.answer import Answer, Chunk
from tandem.orchestrator.requests.message import Message
from tandem.orchestrator.requests.request import (
    ChatMessage,
    Conversation,
    Request,
    Sampling,
    Tool,
)
from tandem.protos.errors import InvalidRequest
from tandem.v1 import orchestrator_pb2 as api
from tests.services.saying import QUESTION, SCHEMA, TOOL, WRITTEN, Saying

CALLED = '{"city": "Oslo"}'


async def test_grpc_and_its_client_have_the_same_tools(hermes: Saying) -> None:
    async with AsyncClient(hermes.address) as client:
        over_http = await hermes.chat([QUESTION], tools=[TOOL])
        async with client.stream([QUESTION], tools=[TOOL], max_new_tokens=999) as stream:
            chunks = [chunk async for chunk in stream]
            answer = stream.response
        assert answer and hermes.sayer.prompts[0] == hermes.sayer.prompts[1]
        assert answer.content == "".join(each.content for each in chunks) == "Let me see."
        assert answer.text == f"Let me see.{WRITTEN['hermes']}"
        streamed = [call for each in chunks for call in each.tool_calls]
        assert list(answer.tool_calls) == streamed and len({call.id for call in streamed}) == 2
        for call, other in zip(streamed, over_http.message.tool_calls, strict=True):
            function = other.function
            assert (call.name, call.arguments) == (function.name, function.arguments)
        called = {"role": "assistant", "tool_calls": answer.tool_calls, "reasoning_content": "Hm."}
        result = {"role": "tool", "content": "rain", "tool_call_id": streamed[0].id}
        flat = {"name": "weather", "description": "of a city", "parameters": SCHEMA}
        last = await client.generate([QUESTION, called, result], tools=[flat])
        assert (last.content, last.text, list(last.tool_calls)) == ("It rains.", "It rains.", [])
        assert "called weather with ZürichHm." in hermes.sayer.prompts[-1]
        plain = await client.generate("tool: ")
        assert (plain.text, plain.content) == ("It rains.", "")


async def test_the_client_has_the_options_of_a_chat_that_http_has(hermes: Saying) -> None:
    """The Python client and HTTP have the same names, prompts and grammars."""
    chosen = {"type": "function", "function": {"name": "weather"}}
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": CALLED}}
        ],
    }
    both: tuple[dict[str, Any], ...] = (
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": chosen},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [{"type": "function", "function": TOOL["function"] | {"strict": True}}]},
        {"reasoning_effort": "high"},
    )
    beyond: tuple[dict[str, Any], ...] = (
        {"continue_final_message": True},
        {"add_generation_prompt": False, "chat_template_kwargs": {"depth": 2}},
    )
    sayer = hermes.sayer
    async with AsyncClient(hermes.address) as client:
        for options, extra in [*((each, {}) for each in both), *(({}, each) for each in beyond)]:
            await hermes.chat([QUESTION, called], **options, extra_body=extra)
            await client.generate([QUESTION, called], **options, **extra, max_new_tokens=999)
            assert sayer.prompts[-1] == sayer.prompts[-2]
            assert sayer.grammars[-1] == sayer.grammars[-2]
        for name, value in (("tools", [TOOL]), ("tool_choice", "required")):
            with pytest.raises(InvalidRequest, match=f"{name} needs messages as the prompt"):
                await client.generate("Hello", **{name: value})
        with pytest.raises(TypeError, match="'tool_choise'; did you mean 'tool_choice'"):
            await client.generate([QUESTION], tool_choise="auto")
        with pytest.raises(InvalidRequest, match="parallel_tool_calls cannot be 'no'"):
            await client.generate([QUESTION], parallel_tool_calls="no")


@pytest.mark.parametrize(
    ("tool", "call", "problem"),
    [
        ({"name": "a b"}, "{}", r"messages.tools\[0\].name is not of the form"),
        ({"name": "f", "parameters": [1]}, "{}", r"tools\[0\].parameters is not a JSON object"),
        ({"name": "f", "x": 1}, "{}", r"tools\[0\] must be an object with only the fields name, "),
        ({"name": "f"}, "{", r"messages\[0\].tool_calls\[0\].arguments is not JSON"),
    ],
)
async def test_grpc_refuses_what_is_no_tool_by_its_name(
    hermes: Saying, tool: Any, call: str, problem: str
) -> None:
    calls = [api.ToolCall(id="1", name="f", arguments=call)]
    messages = [{"role": "assistant", "tool_calls": calls}]
    async with AsyncClient(hermes.address) as client:
        with pytest.raises(InvalidRequest, match=problem):
            await client.generate(messages, tools=[tool])


async def test_an_answer_that_is_continued_has_the_message_of_the_whole(hermes: Saying) -> None:
    """The stream may break anywhere, also within a call: each piece comes once, with the same
    id.
    """
    tool = Tool("weather")
    prompt = Conversation((ChatMessage("user", "Hello"),), tools=(tool,))
    asked = {"prompt": prompt, "request_id": "id", "sampling": Sampling(seed=1)}

    async def ask(received: tuple[int, ...]) -> tuple[list[Chunk], Answer]:
        request = Request(**asked, received=received, default_new_tokens=999)
        events = [event async for event in hermes.answers.generate(request)]
        assert isinstance(events[-1], Answer)
        return [event for event in events if isinstance(event, Chunk)], events[-1]

    chunks, whole = await ask(())
    assert whole.message and len(whole.message.tool_calls) == 2
    for count in range(len(chunks) + 1):
        had = Message()
        for part in [part for chunk in chunks[:count] for part in chunk.parts]:
            had.add(part)
        seen = sum(len(chunk.token_ids) for chunk in chunks[:count])
        rest, answer = await ask(whole.token_ids[:seen])
        for part in [part for chunk in rest for part in chunk.parts]:
            had.add(part)
        assert had == answer.message == whole.message
