"""An answer names the fields of its request that were not used, and overflow has OpenAI's code."""

from __future__ import annotations

import pytest

from tests.services.fronts import served
from tests.services.test_draining_front import body, over_http


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_names_what_was_ignored(stream: bool) -> None:
    async with served() as front, over_http(front) as client:
        plain = await client.post("/v1/completions", json=body(stream) | {"store": None, "n": 1})
        asked = {"store": True, "metadata": {"a": "b"}}
        noted = await client.post("/v1/completions", json=body(stream) | asked)
    assert (plain.status_code, noted.status_code) == (200, 200)
    assert "x-tandem-ignored" not in plain.headers
    assert noted.headers["x-tandem-ignored"] == "metadata, store"


async def test_a_prompt_that_is_too_long_has_openais_code_and_words() -> None:
    async with served() as front, over_http(front) as client:
        long = await client.post("/v1/completions", json=body() | {"prompt": "word " * 600})
        wanted = await client.post("/v1/completions", json=body() | {"max_tokens": 512})
    for refusal in (long, wanted):
        problem = refusal.json()["error"]
        assert (refusal.status_code, problem["code"]) == (400, "context_length_exceeded")
        assert "maximum context length is 512 tokens" in problem["message"]
