"""Build a request from Python values, with one keyword for every option of the client API."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias, cast

from tandem.protos.errors import InvalidRequest
from tandem.protos.types import SEEDS
from tandem.protos.wire.options import options, put
from tandem.v1 import orchestrator_pb2 as api

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]  # a text, tokens or messages
CHAT_OPTIONS = (  # options that only chats accept, named as in the HTTP API
    *("tools", "tool_choice", "parallel_tool_calls"),
    *("add_generation_prompt", "continue_final_message"),
    *("chat_template_kwargs", "reasoning_effort"),
)
# options that are fields of the request itself, not of `sampling`, `stopping` or `speculation`
REQUEST_FIELDS = ("logprobs", "prompt_logprobs", "echo", "return_token_ids")


def build(prompt: Prompt, **given: Any) -> api.GenerateRequest:
    """Build a request message from a prompt and options. The request has an id and a seed, so it
    can be sent again after a failure. Options that are None are left out. Raises TypeError for an
    unknown option, and InvalidRequest if a value does not fit its option or if an option for chats
    is given without messages.
    """
    request = api.GenerateRequest(request_id=secrets.token_hex(8))
    known = options()
    for name in given:
        if name not in (*known, *CHAT_OPTIONS, *REQUEST_FIELDS):
            near = get_close_matches(name, (*known, *CHAT_OPTIONS, *REQUEST_FIELDS), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"there is no option {name!r}{hint}")
    present = {name: value for name, value in given.items() if value is not None}
    of_chat = {name: present.pop(name) for name in CHAT_OPTIONS if name in present}
    if prompt and not isinstance(prompt, str) and isinstance(prompt[0], Mapping):
        _put_messages(request.messages, prompt)
        _put_options(request.messages, **of_chat)
    elif asked := [name for name, value in of_chat.items() if value]:
        raise InvalidRequest.of(asked[0], "needs messages as the prompt")
    elif isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(cast("Sequence[int]", prompt))
    request.sampling.seed = secrets.randbelow(SEEDS)
    for name, value in present.items():
        (_put_own if name in REQUEST_FIELDS else put)(request, name, value)
    return request


def _put_own(request: api.GenerateRequest, name: str, value: Any) -> None:
    try:
        setattr(request, name, value)
    except (ValueError, TypeError) as error:
        raise InvalidRequest.of(name, f"cannot be {value!r}") from error


def _put_messages(chat: api.Messages, messages: Sequence[Any]) -> None:
    """Add messages to a chat. The tool calls of a message may be written as in OpenAI's API, or as
    in an answer of Tandem.
    """
    for index, each in enumerate(messages):
        try:
            calls = [_call(call) for call in each.get("tool_calls") or ()]
            chat.messages.add(**{**each, "tool_calls": calls})
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            fields = ", ".join(api.ChatMessage.DESCRIPTOR.fields_by_name)
            raise InvalidRequest.of(
                f"messages[{index}]", f"must be an object with only the fields {fields}"
            ) from error


def _call(call: Any) -> api.ToolCall:
    if isinstance(call, api.ToolCall):
        return call
    function = call.get("function", call)
    return api.ToolCall(id=call.get("id"), name=function["name"], arguments=function["arguments"])


def _put_options(
    chat: api.Messages,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: str | Mapping[str, Any] = "auto",
    chat_template_kwargs: Mapping[str, Any] | None = None,
    reasoning_effort: str | None = None,
    **flags: bool,
) -> None:
    """Set the options of a chat. `tools` and `tool_choice` may be written as in OpenAI's API, or
    without the object `function` around their fields.
    """
    if isinstance(tool_choice, Mapping):
        tool_choice = tool_choice.get("function", tool_choice).get("name", "")
    if tool_choice != "none":
        chat.tool_choice = str(tool_choice)
        for index, tool in enumerate(tools):
            _put_tool(chat, index, tool)
    effort = {"reasoning_effort": reasoning_effort} if reasoning_effort else {}
    try:
        chat.template_arguments.update(effort | dict(chat_template_kwargs or {}))
    except (ValueError, TypeError) as error:
        raise InvalidRequest.of("chat_template_kwargs", "is no JSON object") from error
    for name, value in flags.items():
        try:
            setattr(chat, name, value)
        except TypeError as error:
            raise InvalidRequest.of(name, f"cannot be {value!r}") from error


def _put_tool(chat: api.Messages, index: int, tool: Mapping[str, Any]) -> None:
    try:
        function = dict(tool.get("function", tool))
        schema = json.dumps(found) if (found := function.pop("parameters", None)) else ""
        chat.tools.add(**function, parameters=schema)
    except (ValueError, TypeError, AttributeError) as error:
        problem = "must be an object with only the fields name, description, parameters and strict"
        raise InvalidRequest.of(f"tools[{index}]", problem) from error
