"""LiteLLM as a client of OpenAI servers and of hosted vLLM."""

import asyncio
import json
import sys
from typing import Literal

import litellm
from pydantic import BaseModel

url, model, tools_url, _ = sys.argv[1:]
MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


class City(BaseModel):
    name: Literal["Paris", "Lyon"]


for provider in ("openai", "hosted_vllm"):
    asked = {"model": f"{provider}/{model}", "api_base": url, "api_key": "none", "temperature": 0}
    answer = litellm.completion(messages=MESSAGES, max_tokens=30, **asked)
    text = answer.choices[0].message.content
    assert "Paris" in text
    pieces = litellm.completion(messages=MESSAGES, max_tokens=30, stream=True, **asked)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text
    later = asyncio.run(litellm.acompletion(messages=MESSAGES, max_tokens=30, **asked))
    assert later.choices[0].message.content == text
    shaped = litellm.completion(messages=MESSAGES, response_format=City, **asked)
    City.model_validate_json(shaped.choices[0].message.content)
    try:
        litellm.completion(messages=[{"role": "user", "content": "a " * 9000}], **asked)
        raise AssertionError("it fits")
    except litellm.ContextWindowExceededError:
        pass
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    called = litellm.completion(
        model=f"{provider}/said",
        api_base=tools_url,
        api_key="none",
        messages=[{"role": "user", "content": "How is it in Zürich?"}],
        tools=[tool],
    )
    (first, _) = called.choices[0].message.tool_calls
    assert json.loads(first.function.arguments) == {"city": "Zürich"}
text = litellm.text_completion(
    model=f"text-completion-openai/{model}",
    api_base=url,
    api_key="none",
    prompt="Once",
    max_tokens=4,
)
assert text.choices[0].text
response = litellm.responses(
    model=f"openai/{model}", api_base=url, api_key="none", input="Say hello.", max_output_tokens=16
)
assert response.output
