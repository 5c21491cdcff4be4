"""Generate bodies of HTTP requests from the Pydantic models that parse them. The module is pure:
the random generator is an argument.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tandem.benchmarks.fuzz import odd
from tandem.benchmarks.fuzz.odd import GRAMMARS, SCHEMAS
from tandem.orchestrator.http.bodies.schema import ChatBody, CompletionBody
from tandem.orchestrator.http.bodies.tokens import DetokenizeBody, TokenizeOptions
from tandem.orchestrator.http.responses.body import SAME, ResponsesBody

MESSAGE = {"role": "user", "content": "Once"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
STRICT = {"type": "function", "function": {"name": "g", "parameters": SCHEMAS[0], "strict": True}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FLAT = {"type": "function", "name": "f", "parameters": SCHEMAS[1], "strict": True}
ITEMS = (
    {"role": "user", "content": [{"type": "input_text", "text": "Once"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "x"},
    {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "text", "text": "Hm"}]},
)
NAMED = {"type": "function", "function": {"name": "f"}}
# for each path: the names of all fields, and a valid body
VALID: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "/v1/completions": ((*CompletionBody.model_fields,), {"prompt": "Once", "max_tokens": 2}),
    "/v1/chat/completions": ((*ChatBody.model_fields,), {"messages": [MESSAGE], "max_tokens": 2}),
    "/v1/responses": (
        (*ResponsesBody.model_fields, *SAME),
        {"input": "Once", "max_output_tokens": 2},
    ),
    "/tokenize": (
        (*TokenizeOptions.model_fields, "model", "prompt", "messages", "tools"),
        {"prompt": "Once"},
    ),
    "/detokenize": ((*DetokenizeBody.model_fields,), {"tokens": [5]}),
}
CHANGE_COUNTS = (1, 1, 1, 2, 4)
LIKELY: dict[str, tuple[Any, ...]] = {  # values of the expected type, by field
    "temperature": (0, 0.7, 1e-45, 3.4e38),
    "top_p": (1e-45, 0.5, 1),
    "min_p": (0, 1),
    "logprobs": (0, 20, 21, True),
    "prompt_logprobs": (0, 1, 20, 21),
    "echo": (True, False),
    "return_token_ids": (True,),
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
    "tools": ([TOOL], [], [TOOL] * 200, [STRICT], [TOOL, STRICT], [FLAT]),
    "tool_choice": ("auto", "none", "required", NAMED, {"type": "function", "name": "f"}),
    "n": (1, 3, 128, 129),
    "prediction": ({"type": "content", "content": "Once upon"},),
    "response_format": (
        {"type": "json_object"},
        *({"type": "json_schema", "json_schema": {"name": "a", "schema": s}} for s in SCHEMAS),
    ),
    "structured_outputs": (
        *({"json": schema} for schema in SCHEMAS),
        *({name: text} for name, texts in GRAMMARS.items() for text in texts),
    ),
    "guided_json": SCHEMAS,
    "guided_regex": GRAMMARS["regex"],
    "guided_choice": GRAMMARS["choice"],
    "guided_grammar": GRAMMARS["grammar"],
    "speculation": (
        {},
        {"method": "suffix"},
        {"method": "medusa_lite", "branches": 2},
        {"num_speculative_tokens": 0},
        {"rule": "reject"},
    ),
    "seed": (-1, 0, 1 << 63),
    "input": (list(ITEMS), [ITEMS[1]], [ITEMS[0]] * 300, []),
    "text": ({"format": {"type": "json_schema", "name": "a", "schema": SCHEMAS[0]}}, {}),
    "reasoning": ({"effort": "low"}, {}),
    "tokens": ([], [1, 2, 3], [4096], list(range(4000))),
}


def body(path: str, rng: Random) -> bytes:
    """Generate a body with some odd values or, rarely, bytes that are not a request at all."""
    if rng.random() < 0.03:
        return rng.choice((b"", b"{", b"[" * 1000, b"null", rng.randbytes(50), b'"\\ud800"'))
    fields, valid = VALID[path]
    content = dict(valid)
    for _ in range(rng.choice(CHANGE_COUNTS)):
        name = rng.choice(fields)
        if name in LIKELY and rng.random() < 0.5:
            content[name] = rng.choice(LIKELY[name])
        elif rng.random() < 0.05:
            content.pop(name, None)
        else:
            content[name] = odd.json_value(rng)
    if rng.random() < 0.03:
        content[odd.text(rng)[:20]] = odd.json_value(rng)
    return json.dumps(content, ensure_ascii=rng.random() < 0.5).encode()
