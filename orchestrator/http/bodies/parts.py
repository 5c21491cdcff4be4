"""What bodies are made of: numbers, messages, tools, forms of an answer.

What is not here is refused by its name, unless `tolerance` has taken it out.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tandem.orchestrator.requests.tools import NAME, json_object

MOST_CHOICES = 128  # of one request, of all its prompts, as at OpenAI
MOST_32, LEAST_64, MOST_64 = (1 << 32) - 1, -(1 << 63), (1 << 64) - 1


def _json_object(value: str) -> str:
    """The arguments of a call, which templates write as objects; some clients send none as ""."""
    try:
        json_object(value or "{}")
    except ValueError as wrong:
        raise ValueError(f"are not {wrong}") from None
    return value or "{}"


def _single(value: float) -> float:
    """As gRPC carries it, so that both give the same text."""
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        raise ValueError("is too large for a number of 32 bits") from None
    return float(rounded)


Number: TypeAlias = Annotated[float, AfterValidator(_single)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=MOST_32)]
Seed: TypeAlias = Annotated[int, Field(ge=LEAST_64, le=MOST_64)]
TokenId: TypeAlias = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
TokenIds: TypeAlias = Annotated[list[Count], Field(fail_fast=True)]
Texts: TypeAlias = Annotated[list[str], Field(fail_fast=True)]


class Body(BaseModel):
    """Of any kind: no field is unknown, no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class StreamOptions(Body):
    """What a stream has beside the text."""

    include_usage: bool | None = None


class SpeculationBody(Body):
    """How this request is drafted for, as over gRPC."""

    rule: Literal["match", "reject", "top1"] | None = None
    num_speculative_tokens: Count | None = None
    branches: Count | None = None
    method: Literal["tree", "medusa_lite", "suffix", "ngram"] | None = None
    schedule: Literal["goodput", "constant", "heuristic"] | None = None
    confidence_threshold: Number | None = None
    prediction: str | None = None


class JsonSchema(Body):
    """Of OpenAI's `response_format`. An answer is always valid by it, strict or not."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Body):
    """What an answer is."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """The same as vLLM has it: one of these."""

    json_: Annotated[str | dict[str, Any] | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None


class TextPart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


Content: TypeAlias = str | Annotated[list[TextPart], Field(fail_fast=True)]


class Written(Body):
    """What has a text, whole or in parts."""

    content: Content | None = None

    @property
    def text(self) -> str:
        """All parts of it."""
        content = self.content or ""
        return content if isinstance(content, str) else "\n".join(part.text for part in content)


class PredictionBody(Written):
    """What much of an answer may repeat."""

    type: Literal["content"]
    content: Content


class CalledBody(Body):
    """What an assistant called."""

    name: str
    arguments: Annotated[str, AfterValidator(_json_object)]


class CallBody(Body):
    """A call in an assistant's message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledBody


class FunctionBody(Body):
    """What a model may call."""

    name: Annotated[str, Field(pattern=rf"^{NAME}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    """A tool of a chat."""

    type: Literal["function"]
    function: FunctionBody


class ChosenBody(Body):
    """The name of a tool."""

    name: str


class ChoiceBody(Body):
    """The tool that is called."""

    type: Literal["function"]
    function: ChosenBody


class MessageBody(Written):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same
    tool_calls: Annotated[list[CallBody], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> MessageBody:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are not of the role {self.role}")
        return self
