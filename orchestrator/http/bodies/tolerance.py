"""Before a body is validated, remove the fields that do not affect the answer: nulls, default
values, and fields that do not concern the model. The module is pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "skip_special_tokens": (True,),  # this and the following fields exist only in vLLM's API
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "return_tokens_as_token_ids": (False,),
}
IGNORED = ("metadata", "priority", "prompt_cache_retention", "service_tier", "store")
OF_OPTIONS = ("continuous_usage_stats", "include_obfuscation")  # ignored in `stream_options`
OF_MESSAGES = ("annotations", "id")  # ignored in messages that a client sends back
OF_CALLS = ("index",)  # ignored in tool calls that a client sends back
OF_PARTS = ("cache_control",)  # ignored in the parts of messages, and in tools
VERBATIM = (  # fields from which nulls are not removed, because a schema may contain nulls
    *("tools", "text"),
    *("guided_json", "response_format", "structured_outputs"),
)


def without_effect(body: Json) -> tuple[Json, tuple[str, ...]]:
    """Return the fields that remain to be validated, and the names of the ignored fields. Fields
    that are null or have a default value are removed without being reported.
    """
    left = {
        name: value if name in VERBATIM else _present(value)
        for name, value in body.items()
        if value is not None
    }
    for name in NEUTRAL.keys() & left.keys():
        if is_neutral(name, left[name]):
            del left[name]
    ignored = [name for name in IGNORED if left.pop(name, None)]
    if isinstance(options := left.get("stream_options"), dict):
        ignored += [f"stream_options.{name}" for name in OF_OPTIONS if options.pop(name, None)]
    for message in _objects(left.get("messages")):
        _drop(message, OF_MESSAGES)
        for call in _objects(message.get("tool_calls")):
            _drop(call, OF_CALLS)
        for part in _objects(message.get("content")):
            _drop(part, OF_PARTS)
    for tool in _objects(left.get("tools")):
        _drop(tool, OF_PARTS)
    return left, tuple(ignored)


def is_neutral(name: str, value: object) -> bool:
    """Whether this value of an option has the same effect as leaving the option out. The values `1`
    and `true` count as different, although they are equal in Python.
    """
    return any(type(value) is type(each) and value == each for each in NEUTRAL[name])


def accepted(name: str) -> str:
    """Return the accepted values of an option, joined by "or"."""
    return " or ".join(json.dumps(each) for each in NEUTRAL[name])


def _present(value: Any) -> Any:
    """Return a JSON value without the null members of its objects, at every level of nesting."""
    if isinstance(value, dict):
        return {name: _present(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_present(each) if isinstance(each, dict | list) else each for each in value]
    return value


def _objects(value: Any) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _drop(value: Json, names: tuple[str, ...]) -> None:
    for name in names:
        value.pop(name, None)
