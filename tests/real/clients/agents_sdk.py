"""OpenAI's agents SDK: chats and responses, an output type, a tool and a stream."""

import asyncio
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

url, model, tools_url, _ = sys.argv[1:]
set_tracing_disabled(True)
client = AsyncOpenAI(base_url=url, api_key="none")
caller = AsyncOpenAI(base_url=tools_url, api_key="none")
SETTINGS = ModelSettings(temperature=0, max_tokens=60)
ASKED = "What is the capital of France? Answer in one sentence."
asked = []


class City(BaseModel):
    name: Literal["Paris", "Lyon"]


@function_tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    asked.append(city)
    return "rain"


async def main() -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        known = kind(model, client)
        agent = Agent("teller", model=known, model_settings=SETTINGS)
        text = (await Runner.run(agent, ASKED)).final_output
        assert "Paris" in text
        streamed = Runner.run_streamed(agent, ASKED)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == text
        shaped = Agent("shaper", model=known, model_settings=SETTINGS, output_type=City)
        assert isinstance((await Runner.run(shaped, "Name a city.")).final_output, City)
        asked.clear()
        agent = Agent("caller", model=kind("said", caller), tools=[weather])
        assert (await Runner.run(agent, "How is it in Zürich?")).final_output == "It rains."
        assert asked == ["Zürich"] * 2


asyncio.run(main())
