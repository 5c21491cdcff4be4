"""The official client: chats, completions, responses, structured answers, tools, streams."""

import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

url, model, tools_url, _ = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key="none")
caller = openai.OpenAI(base_url=tools_url, api_key="none")
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
GREEDY = {"model": model, "temperature": 0}


class City(BaseModel):
    name: Literal["Paris", "Lyon"]
    capital: bool


class Weather(BaseModel):
    """The weather of a city."""

    city: str


answer = client.chat.completions.create(messages=QUESTION, max_tokens=30, **GREEDY)
text = answer.choices[0].message.content
assert "Paris" in text and answer.usage.completion_tokens > 3
pieces = client.chat.completions.create(messages=QUESTION, max_tokens=30, stream=True, **GREEDY)
assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text
again = [*QUESTION, answer.choices[0].message.model_dump(), {"role": "user", "content": "Why?"}]
assert client.chat.completions.create(messages=again, max_tokens=5, **GREEDY).choices[0].message
with client.chat.completions.stream(messages=QUESTION, max_tokens=30, **GREEDY) as stream:
    assert stream.get_final_completion().choices[0].message.content == text
two = client.chat.completions.create(messages=QUESTION, max_tokens=5, n=2, model=model, seed=1)
assert [choice.index for choice in two.choices] == [0, 1]
probable = client.chat.completions.create(
    messages=QUESTION, max_tokens=3, logprobs=True, top_logprobs=2, **GREEDY
)
assert len(probable.choices[0].logprobs.content[0].top_logprobs) == 2

prompts = ["Once upon a time", "The capital of France is"]
found = client.completions.create(prompt=prompts, max_tokens=8, stop=["."], **GREEDY)
assert len(found.choices) == 2

parsed = client.chat.completions.parse(messages=QUESTION, response_format=City, **GREEDY)
assert isinstance(parsed.choices[0].message.parsed, City)
free = client.chat.completions.create(
    messages=QUESTION, response_format={"type": "json_object"}, max_tokens=8, **GREEDY
)
assert free.choices[0].message.content.startswith("{")
response = client.responses.create(input="Say hello.", max_output_tokens=16, **GREEDY)
assert response.output_text
events = client.responses.create(input="Say hello.", max_output_tokens=16, stream=True, **GREEDY)
assert [event.type for event in events][-1] in ("response.completed", "response.incomplete")
shaped = client.responses.parse(input="Name a city.", text_format=City, **GREEDY)
assert isinstance(shaped.output_parsed, City)

for strict in (False, True):
    tool = openai.pydantic_function_tool(Weather, name="weather")
    tool["function"]["strict"] = strict
    messages = [{"role": "user", "content": "How is it in Zürich?"}]
    message = caller.chat.completions.create(model="said", messages=messages, tools=[tool])
    called = message.choices[0].message
    assert json.loads(called.tool_calls[0].function.arguments) == {"city": "Zürich"}
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in called.tool_calls
    ]
    last = caller.chat.completions.create(
        model="said", messages=[*messages, called, *results], tools=[tool]
    )
    assert last.choices[0].message.content == "It rains."
with caller.chat.completions.stream(model="said", messages=messages, tools=[tool]) as stream:
    call = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert call.function.parsed_arguments.city == "Zürich"

try:
    client.chat.completions.create(model=model, messages=[{"role": "user", "content": "a " * 9000}])
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded"
assert [each.id for each in client.models.list()] == [model]
