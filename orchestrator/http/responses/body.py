"""Convert the bodies of `/v1/responses` to chat bodies. The module is pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from tandem.orchestrator.http.bodies.parsing import read, validated
from tandem.orchestrator.http.bodies.parts import Body
from tandem.orchestrator.http.bodies.schema import ChatBody
from tandem.orchestrator.http.bodies.tolerance import Json

SAME = (  # fields that have the same name in chat bodies; some are not in OpenAI's API
    *("model", "stream", "temperature", "top_p", "parallel_tool_calls", "user"),
    *("prompt_cache_key", "safety_identifier", "seed", "stop", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("cache_salt", "ignore_eos", "min_tokens", "stop_token_ids", "chat_template_kwargs"),
    *("speculation", "prediction"),
)
RENAMED = {  # names of chat fields in `/v1/responses`, for error messages
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


class InputPart(Body):
    """A text part of an item. Annotations are ignored; they occur in output that a client sends
    back.
    """

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


Content: TypeAlias = str | Annotated[list[InputPart], Field(fail_fast=True)]


class InputItem(Body):
    """An item of the input: a message, a tool call, a call's output, or reasoning that the client
    sends back.
    """

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None
    summary: list[InputPart] | None = None
    id: str | None = None
    status: str | None = None
    encrypted_content: str | None = None

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> InputItem:
        needs = {
            "message": ("role", "content"),
            "function_call": ("call_id", "name", "arguments"),
            "function_call_output": ("call_id", "output"),
        }
        for name in needs.get(self.type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"a {self.type} needs {name}")
        return self


class FunctionTool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ChosenTool(Body):
    """The `tool_choice` that names the one function that the model must call."""

    type: Literal["function"]
    name: str


class Reasoning(Body):
    """The reasoning options, such as how much the model should reason."""

    effort: str | None = None
    summary: str | None = None  # ignored, because the answer contains the reasoning itself


class Text(Body):
    """The options of the answer's text, such as its format."""

    format: Json | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesBody(Body):
    """The body of `/v1/responses`, without the fields that have the same name in a chat body."""

    input: str | Annotated[list[InputItem], Field(min_length=1, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenTool | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    # ignored, because it requests additional output that answers never contain
    include: list[str] | None = None
    top_logprobs: Literal[0] | None = None


def as_chat(content: bytes) -> tuple[tuple[ChatBody, ResponsesBody], tuple[str, ...]]:
    """Parse a body of `/v1/responses` and convert it to a chat body. Returns the chat body and the
    parsed body, and the names of the ignored fields. Raises InvalidRequest, which uses the field
    names of `/v1/responses`.
    """
    body, ignored = read(content)
    own = {name: value for name, value in body.items() if name not in SAME}
    asked = validated(ResponsesBody, own)
    chat = {name: body[name] for name in SAME if name in body} | _chat(asked)
    return (validated(ChatBody, chat, RENAMED), asked), ignored


def _chat(asked: ResponsesBody) -> Json:
    tools = [
        {"type": "function", "function": each.model_dump(exclude_none=True, exclude={"type"})}
        for each in asked.tools or ()
    ]
    choice = asked.tool_choice
    if isinstance(choice, ChosenTool):
        chosen: Any = {"type": "function", "function": {"name": choice.name}}
    else:
        chosen = choice
    fields = {
        "messages": list(_messages(asked)),
        "max_completion_tokens": asked.max_output_tokens,
        "tools": tools or None,
        "tool_choice": chosen if tools else None,
        "reasoning_effort": asked.reasoning and asked.reasoning.effort,
        "response_format": _format(asked.text.format if asked.text else None),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _format(given: Json | None) -> Json | None:
    """Convert `text.format` to a chat's `response_format`, in which the schema is a nested object.
    Returns None if the format is plain text.
    """
    if given is None or given.get("type") == "text":
        return None
    if given.get("type") != "json_schema":
        return given
    schema = {name: value for name, value in given.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _messages(asked: ResponsesBody) -> Iterator[Json]:
    """Yield the chat messages of the input. Consecutive tool calls, and the reasoning and content
    before them, are merged into one assistant message.
    """
    if asked.instructions:
        yield {"role": "system", "content": asked.instructions}
    if isinstance(asked.input, str):
        yield {"role": "user", "content": asked.input}
        return
    held: Json = {}  # assistant message that further items may extend
    for item in asked.input:
        if item.type == "reasoning":
            held["reasoning_content"] = _text(item.content or item.summary or "")
        elif item.type == "function_call":
            function = {"name": item.name, "arguments": item.arguments}
            calls = held.setdefault("tool_calls", [])
            calls.append({"id": item.call_id, "type": "function", "function": function})
        elif item.role == "assistant" and "tool_calls" not in held and "content" not in held:
            held["content"] = _text(item.content or "")
        else:
            yield from _assistant(held)
            held = {}
            if item.type == "function_call_output":
                output = _text(item.output or "")
                yield {"role": "tool", "tool_call_id": item.call_id, "content": output}
            elif item.role == "assistant":
                held = {"content": _text(item.content or "")}
            else:
                yield {"role": item.role, "content": _text(item.content or "")}
    yield from _assistant(held)


def _assistant(held: Json) -> Iterator[Json]:
    if held.keys() & {"content", "tool_calls"}:
        yield {"role": "assistant"} | held


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
