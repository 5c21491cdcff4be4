"""Required calls come with any model, and their arguments follow the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from jsonschema import validate
from openai import AsyncOpenAI

from tests.http_served import serve_http, with_template
from tests.served import Pair, Services, serve_models

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


BARE = '{# tools, "parameters" #}Once'  # the prompt has one token
WRONG = 'Well.\n{"name": "weather", "parameters": {"town": "Paris", "days": 12}} It will rain.'


@pytest.mark.usefixtures("waited_for")
async def test_a_strict_tool_that_is_called_without_a_marker_has_its_schema_from_any_drafts(
    scripted: Callable[[str, int], Pair], tmp_path: Path
) -> None:
    """The model by itself would write a wrong call; the drafter proposes what the model would
    write.
    """
    pair = scripted(WRONG, 7)
    folder = with_template(pair.target, tmp_path, BARE)
    asked: dict[str, Any] = {"model": folder.name, "max_tokens": 120, "seed": 3}
    asked |= {"messages": [{"role": "user", "content": "Hello"}]}
    async with (
        # rounding moves the logits of such a model far
        serve_models(pair, self_test="warn") as services,
        serve_http(services, folder, served_model_name=folder.name) as door,
        AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client,
    ):
        for temperature in (0, 1):
            found = []
            for way in ({"num_speculative_tokens": 0}, {}, {"method": "ngram"}):
                answer = await client.chat.completions.create(
                    **asked,
                    tools=[tool(strict=True)],
                    temperature=temperature,
                    extra_body={"speculation": way},
                )
                assert answer.usage and answer.usage.prompt_tokens == 1
                found.append(answer.choices[0].message)
            plain, *drafted = [
                each.model_dump(exclude={"tool_calls": {"__all__": {"id"}}}) for each in found
            ]
            assert drafted == [plain] * 2
            if temperature == 0:
                (call,) = found[0].tool_calls or ()
                assert (found[0].content or "").startswith("Well.")
                assert isinstance(call, openai.types.chat.ChatCompletionMessageFunctionToolCall)
                validate(json.loads(call.function.arguments), SCHEMA)


async def test_a_model_of_stories_calls_the_tool_that_it_has_to(
    services: Services, embedded: Pair, tmp_path: Path
) -> None:
    """The call is the same when it is sampled, drafted and streamed."""
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
