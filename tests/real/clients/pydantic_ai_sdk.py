"""Pydantic AI: chats, streams, objects in three ways, an agent with a tool."""

import asyncio
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

url, model, tools_url, _ = sys.argv[1:]
provider = OpenAIProvider(base_url=url, api_key="none")
ASKED = "What is the capital of France? Answer in one sentence."


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Lyon"]


async def main() -> None:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        known = kind(model, provider=provider)
        agent = Agent(known, model_settings={"temperature": 0, "max_tokens": 40})
        text = (await agent.run(ASKED)).output
        assert "Paris" in text
        async with agent.run_stream(ASKED) as stream:
            assert [each async for each in stream.stream_text()][-1] == text
        for output in (NativeOutput(City), ToolOutput(City)):
            shaped = Agent(known, output_type=output, model_settings={"temperature": 0})
            assert isinstance((await shaped.run("Name a city.")).output, City)
    caller = OpenAIChatModel("said", provider=OpenAIProvider(base_url=tools_url, api_key="none"))
    asked = []

    def weather(city: str) -> str:
        """Tell the weather of a city."""
        asked.append(city)
        return "rain"

    agent = Agent(caller, tools=[weather])
    assert (await agent.run("How is it in Zürich?")).output == "It rains."
    assert asked == ["Zürich"] * 2


asyncio.run(main())
