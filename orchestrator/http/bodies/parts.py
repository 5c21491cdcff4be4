"""The parts of request bodies: number types, messages, tools and response formats.

A field that no class declares causes an error that names the field. Fields that do not affect the
answer cause no error, because the module `tolerance` removes them in advance.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tandem.orchestrator.requests.tools import NAME, json_object

MAX_CHOICES = 128  # OpenAI's limit on the choices of all prompts of one request
MAX_INT32, LEAST_64, MAX_INT64 = (1 << 32) - 1, -(1 << 63), (1 << 64) - 1


def _json_object(value: str) -> str:
    """Check that a tool call's arguments are a JSON object, because chat templates need an object.
    An empty string counts as {}, because some clients send it for a call without arguments.
    """
    try:
        json_object(value or "{}")
    except ValueError as wrong:
        raise ValueError(f"are not {wrong}") from None
    return value or "{}"


def _single(value: float) -> float:
    """Round a number to a 32-bit float, as gRPC does, so that HTTP and gRPC requests with the same
    options generate the same text.
    """
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        raise ValueError("is too large for a 32-bit number") from None
    return float(rounded)


Number: TypeAlias = Annotated[float, AfterValidator(_single)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT32)]
Seed: TypeAlias = Annotated[int, Field(ge=LEAST_64, le=MAX_INT64)]
TokenId: TypeAlias = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
TokenIds: TypeAlias = Annotated[list[Count], Field(fail_fast=True)]
Texts: TypeAlias = Annotated[list[str], Field(fail_fast=True)]


class Body(BaseModel):
    """Base class of all bodies, which refuses unknown fields and values of the wrong type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class StreamOptions(Body):
    """The stream options, which say whether the stream's last event reports the token usage."""

    include_usage: bool | None = None


class SpeculationBody(Body):
    """The speculation options of one request, which are the same as in the gRPC API."""

    rule: Literal["match", "reject", "top1"] | None = None
    num_speculative_tokens: Count | None = None
    branches: Count | None = None
    method: Literal["tree", "medusa_lite", "suffix", "ngram"] | None = None
    schedule: Literal["goodput", "constant", "heuristic"] | None = None
    confidence_threshold: Number | None = None
    prediction: str | None = None


class JsonSchema(Body):
    """The JSON schema in OpenAI's `response_format`. Answers always conform to the schema, even if
    `strict` is false.
    """

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Body):
    """The format of an answer: text, any JSON object, or JSON that conforms to a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """The format of an answer in vLLM's fields, of which at most one may be set."""

    json_: Annotated[str | dict[str, Any] | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None


class TextPart(Body):
    """A text part of a message."""

    type: Literal["text"]
    text: str


Content: TypeAlias = str | Annotated[list[TextPart], Field(fail_fast=True)]


class Written(Body):
    """Base class of bodies whose content is a string or a list of text parts."""

    content: Content | None = None

    @property
    def text(self) -> str:
        """The content as one string. Text parts are joined by newlines."""
        content = self.content or ""
        return content if isinstance(content, str) else "\n".join(part.text for part in content)


class PredictionBody(Written):
    """OpenAI's `prediction`: text that the answer will probably repeat to a large extent."""

    type: Literal["content"]
    content: Content


class CalledBody(Body):
    """The name and arguments of a function that an assistant called."""

    name: str
    arguments: Annotated[str, AfterValidator(_json_object)]


class CallBody(Body):
    """A tool call in an assistant's message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledBody


class FunctionBody(Body):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=rf"^{NAME}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    """A tool that a chat offers the model; only functions are supported."""

    type: Literal["function"]
    function: FunctionBody


class ChosenBody(Body):
    """The name of the tool that the model must call."""

    name: str


class ChoiceBody(Body):
    """The `tool_choice` that names one tool, which the model must call."""

    type: Literal["function"]
    function: ChosenBody


class MessageBody(Written):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # alias of `reasoning_content`
    tool_calls: Annotated[list[CallBody], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> MessageBody:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls need the role assistant, not {self.role}")
        return self
