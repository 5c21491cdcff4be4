"""`/v1/responses` as the official client uses it: the text of a chat, in items and events."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tandem.orchestrator.http.responses.body import as_chat
from tests.http_served import CHAT, TOKENS, converse

pytestmark = pytest.mark.usefixtures("nothing_left")


async def respond(client: AsyncOpenAI, **options: Any) -> Any:
    return await client.responses.create(
        **{
            "model": "target",
            "instructions": "Tell a story.",
            "input": [{"role": "user", "content": "Once upon a time"}],
            "temperature": 0,
            "max_output_tokens": TOKENS,
        }
        | options
    )


async def test_a_response_is_what_the_chat_says(client: AsyncOpenAI) -> None:
    chat, response = await converse(client), await respond(client)
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert response.usage.output_tokens == TOKENS
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    as_text = await respond(client, input="Once upon a time")
    assert as_text.output_text == response.output_text


async def test_the_events_of_a_stream_make_the_response(client: AsyncOpenAI) -> None:
    whole = await respond(client)
    async with client.responses.stream(
        model="target",
        instructions="Tell a story.",
        input="Once upon a time",
        temperature=0,
        max_output_tokens=TOKENS,
    ) as stream:
        events = [event async for event in stream]
    assert events[-1].response.output_text == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"truncation": "auto"}, "truncation"),
    ],
)
async def test_what_is_not_there_is_refused_by_its_name(
    client: AsyncOpenAI, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(client, **wrong)
    assert refused.value.param == field


def test_items_are_the_messages_of_a_chat() -> None:
    """Earlier calls and reasoning are sent back as the client got them."""
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_1"}
    items = [
        *({"role": each["role"], "content": "x"} for each in CHAT),
        {"type": "reasoning", "id": "r", "summary": [], "content": [text("reasoning_text", "hm")]},
        call,
        call | {"call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [text("input_text", "2")]},
        {"type": "message", "role": "assistant", "content": [text("output_text", "done")]},
        {"role": "user", "content": [text("input_text", "and?")]},
    ]
    (chat, _), ignored = as_chat(json.dumps({"input": items, "store": True}).encode())
    roles = [each.role for each in chat.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    said = chat.messages[2]
    assert said.reasoning_content == "hm" and said.tool_calls
    assert [each.id for each in said.tool_calls] == ["c1", "c2"]
    assert [each.text for each in chat.messages[3:]] == ["1", "2", "done", "and?"]
    assert ignored == ("store",)


def text(kind: str, of: str) -> dict[str, str]:
    return {"type": kind, "text": of}
