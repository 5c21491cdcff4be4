"""LangChain: chats, streams, batches, structured output in three ways, tools."""

import sys
from typing import Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

url, model, tools_url, _ = sys.argv[1:]
ASKED = "What is the capital of France? Answer in one sentence."
chat = ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0)


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Lyon"]


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"rain in {city}"


answer = chat.invoke(ASKED, max_tokens=30)
assert "Paris" in answer.content and answer.usage_metadata["output_tokens"] > 3
assert "".join(piece.content for piece in chat.stream(ASKED, max_tokens=30)) == answer.content
assert len(chat.batch([ASKED, "Say hello."], max_tokens=8)) == 2
for method in ("json_schema", "function_calling"):
    assert isinstance(chat.with_structured_output(City, method=method).invoke("A city?"), City)
later = ChatOpenAI(base_url=url, api_key="none", model=model, use_responses_api=True)
assert later.invoke("Say hello.", max_output_tokens=16).content
completing = OpenAI(base_url=url, api_key="none", model=model, max_tokens=4)
assert len(completing.batch(["Once upon a time", "The capital of France is"])) == 2

caller = ChatOpenAI(base_url=tools_url, api_key="none", model="said")
for strict in (None, True):
    bound = caller.bind_tools([weather], strict=strict)
    called = bound.invoke("How is it in Zürich?")
    assert called.tool_calls[0]["args"] == {"city": "Zürich"}
    results = [weather.invoke(call) for call in called.tool_calls]
    assert bound.invoke([("user", "How is it?"), called, *results]).content == "It rains."
streamed = None
for piece in caller.bind_tools([weather]).stream("How is it in Zürich?"):
    streamed = piece if streamed is None else streamed + piece
assert [call["name"] for call in streamed.tool_calls] == ["weather"] * 2
