"""Methods besides answers: tokens of a prompt and back, version and metrics, as clients of vLLM
request them.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import httpx2
import pytest

from tests.services.saying import CONTEXT, QUESTION, TOOL, Saying

TEXT = "Once upon a time in Zürich <|endoftext|>"
SIZE = 4096


async def asked(model: Saying, path: str, body: Any = None) -> tuple[int, Any]:
    """Return the status and the JSON of a reply."""
    async with httpx2.AsyncClient(base_url=model.url, trust_env=False) as http:
        found = await (http.get(path) if body is None else http.post(path, json=body))
    return found.status_code, found.json()


async def test_a_text_is_tokens_and_these_are_the_text(hermes: Saying) -> None:
    for special in (None, True, False):
        body = {"prompt": TEXT, "add_special_tokens": special, "return_token_strs": True}
        status, found = await asked(hermes, "/tokenize", body)
        tokenizer = hermes.sayer.tokenizer
        encoded = tokenizer.encode(TEXT, add_special_tokens=special is not False)
        assert status == 200 and found == {
            "count": len(encoded.ids),
            "max_model_len": CONTEXT,
            "tokens": encoded.ids,
            "token_strs": encoded.tokens,
        }
        status, back = await asked(hermes, "/detokenize", {"tokens": encoded.ids, "model": "said"})
        assert (status, back) == (200, {"prompt": TEXT})
    assert (await asked(hermes, "/detokenize", {"tokens": []}))[1] == {"prompt": ""}


async def test_a_chat_is_the_tokens_that_its_answer_counts(hermes: Saying) -> None:
    """Other fields in the body do not change the tokens."""
    chat = {"messages": [QUESTION], "tools": [TOOL], "model": "said"}
    status, found = await asked(hermes, "/tokenize", chat | {"temperature": 0})
    assert status == 200 and found["token_strs"] is None
    answer = await hermes.client.chat.completions.create(**chat)
    assert found["count"] == len(found["tokens"]) == answer.usage.prompt_tokens
    prompt = (await asked(hermes, "/detokenize", {"tokens": found["tokens"]}))[1]["prompt"]
    assert prompt == hermes.sayer.prompts[-1]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": [1, 2]}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [QUESTION]}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, 400, "add_special_tokens"),
        ("/tokenize", {"prompt": "a" * (CONTEXT * 16 + 1)}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"messages": [QUESTION], "chat_template_kwargs": {"messages": 1}}, 400, None),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, SIZE]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
async def test_what_cannot_be_tokens_is_refused_by_its_name(
    hermes: Saying, path: str, body: Any, status: int, param: str | None
) -> None:
    found = await asked(hermes, path, body)
    assert (found[0], found[1]["error"]["param"]) == (status, param or "chat_template_kwargs")


async def test_the_version_is_as_vllm_says_it(hermes: Saying) -> None:
    assert await asked(hermes, "/version") == (200, {"version": version("tandem-serving")})


async def test_metrics_are_on_the_port_by_our_names_and_by_vllms(hermes: Saying) -> None:
    async with httpx2.AsyncClient(base_url=hermes.url, trust_env=False) as http:
        await hermes.chat([QUESTION])
        plain = await http.get("/metrics")
        parts = await http.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert plain.headers["content-type"].startswith("text/plain")
    ours, theirs = "\ntandem_num_requests_running 0.0", "\nvllm:num_requests_running{model_name="
    assert ours in plain.text and theirs in plain.text
    assert ours in parts.text and parts.text.endswith("# EOF\n")
