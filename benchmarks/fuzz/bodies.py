"""Bodies of HTTP requests made from the models that they are parsed with. Pure."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from pydantic import BaseModel

from tandem.benchmarks.fuzz import odd
from tandem.orchestrator.http.bodies.schema import ChatBody, CompletionBody

MESSAGE = {"role": "user", "content": "Once"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
VALID: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "/v1/completions": (CompletionBody, {"prompt": "Once", "max_tokens": 2}),
    "/v1/chat/completions": (ChatBody, {"messages": [MESSAGE], "max_tokens": 2}),
}
CHANGES = (1, 1, 1, 2, 4)
LIKELY: dict[str, tuple[Any, ...]] = {  # of the right kind
    "temperature": (0, 0.7, 1e-45, 3.4e38),
    "top_p": (1e-45, 0.5, 1),
    "min_p": (0, 1),
    "logprobs": (0, 20, 21, True),
    "prompt_logprobs": (0, 1, 20, 21),
    "echo": (True, False),
    "return_token_ids": (True,),
    "n": (1, 2, 128),
    "max_tokens": (0, 1),
    "stop": ("a", ["a", "b"], [""], ["x"] * 16),
    "stream": (True,),
    "stream_options": ({"include_usage": True}, {}),
    "logit_bias": ({"5": 100}, {"4294967295": 1}, {"0": -100}),
    "prompt": ([1, 2, 3], ["a"], [[7]], "word " * 2000, [4294967295]),
    "messages": (
        [MESSAGE] * 600,
        [],
        [MESSAGE | {"content": [{"type": "text", "text": ""}]}],
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "x"}],
    ),
    "tools": ([TOOL], [], [TOOL] * 200),
    "tool_choice": ("auto", "none", "required"),
}


def body(path: str, rng: Random) -> bytes:
    """A request that could be served, with odd changes; or no request at all."""
    if rng.random() < 0.03:
        return rng.choice((b"", b"{", b"[" * 1000, b"null", rng.randbytes(50), b'"\\ud800"'))
    kind, valid = VALID[path]
    content = dict(valid)
    for _ in range(rng.choice(CHANGES)):
        name = rng.choice(list(kind.model_fields))
        if name in LIKELY and rng.random() < 0.5:
            content[name] = rng.choice(LIKELY[name])
        elif rng.random() < 0.05:
            content.pop(name, None)
        else:
            content[name] = odd.json_value(rng)
    if rng.random() < 0.03:
        content[odd.text(rng)[:20]] = odd.json_value(rng)
    return json.dumps(content, ensure_ascii=rng.random() < 0.5).encode()
