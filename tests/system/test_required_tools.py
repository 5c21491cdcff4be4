"""Calls that have to come do so with any model, and their arguments are by the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.http_served import serve_http, with_template
from tests.served import Pair, Services

pytestmark = pytest.mark.usefixtures("nothing_left")

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bern"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{# <tool_call> tools #}"


def tool(**more: Any) -> Any:
    return {"type": "function", "function": {"name": "weather", "parameters": SCHEMA} | more}


async def test_a_model_of_stories_calls_the_tool_that_it_has_to(
    services: Services, embedded: Pair, tmp_path: Path
) -> None:
    """Drawn, with drafts, and streamed alike."""
    folder = with_template(embedded.target, tmp_path, TEMPLATE)
    async with (
        serve_http(services, folder) as door,
        AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client,
    ):
        asked: dict[str, Any] = {
            "model": "target",
            "messages": [{"role": "user", "content": "Once"}],
            "tools": [tool()],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "seed": 3,
        }
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            found = await client.chat.completions.create(**asked | {"tool_choice": choice})
            (call,) = found.choices[0].message.tool_calls or ()
            assert found.choices[0].finish_reason == "tool_calls"
            assert isinstance(call, openai.types.chat.ChatCompletionMessageFunctionToolCall)
            arguments = json.loads(call.function.arguments)
            assert arguments["city"] in ("Oslo", "Bern") and arguments["days"] <= 9
            stream = await client.chat.completions.create(
                **asked | {"tool_choice": choice, "stream": True}
            )
            streamed = [
                each async for piece in stream for each in piece.choices[0].delta.tool_calls or ()
            ]
            assert streamed[0].function.arguments == call.function.arguments
        with pytest.raises(openai.BadRequestError) as refused:
            bad = tool(parameters={"type": "object", "not": {"type": "object"}})
            await client.chat.completions.create(**asked | {"tools": [bad]})
        assert refused.value.param == "tools"
