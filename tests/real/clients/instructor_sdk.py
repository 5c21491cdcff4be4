"""Instructor: objects in each of its modes for OpenAI-compatible servers."""

import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict

url, model, *_ = sys.argv[1:]


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")  # stops a small model from adding fields for ever

    name: Literal["Paris", "Lyon"]
    capital: bool


question = {
    "model": model,
    "temperature": 0,
    "max_retries": 0,
    "response_model": City,
    "messages": [{"role": "user", "content": "Describe Paris, the capital of France."}],
}
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    own = openai.OpenAI(base_url=url, api_key="none")
    client = instructor.from_openai(own, mode=mode)
    city = client.chat.completions.create(**question)
    assert isinstance(city, City)
    partial = client.chat.completions.create_partial(**question)
    assert list(partial)[-1].model_dump() == city.model_dump()
