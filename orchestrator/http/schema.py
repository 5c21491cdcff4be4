"""Bodies of requests as OpenAI clients send them, and as vLLM extends them.

What is not here is refused by its name, unless `tolerance` has taken it out.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MOST_32, LEAST_64, MOST_64 = (1 << 32) - 1, -(1 << 63), (1 << 64) - 1


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


class GenerationBody(Body):
    """What completions and chats share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[TokenId, Number] | None = None
    seed: Seed | None = None
    stop: str | Texts | None = None
    max_tokens: Count | None = None
    user: str | None = None  # whose share of the places it takes
    prompt_cache_key: str | None = None  # whose requests find each other's cached prefixes
    response_format: ResponseFormat | None = None
    # vLLM's
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None  # older names of the same
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    cache_salt: str | None = None  # no request without it may use what is cached of this one
    top_k: Annotated[int, Field(ge=-1, le=MOST_32)] | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    min_tokens: Count | None = None


class CompletionBody(GenerationBody):
    """`/v1/completions`."""

    prompt: str | list[Any]
    logprobs: Count | None = None


class TextPart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class MessageBody(Body):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None

    @property
    def text(self) -> str:
        """All parts of it."""
        content = self.content
        return content if isinstance(content, str) else "\n".join(part.text for part in content)


class ChatBody(GenerationBody):
    """`/v1/chat/completions`."""

    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    add_generation_prompt: bool | None = None  # vLLM's, as the next
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None  # for templates that have such an argument
    safety_identifier: str | None = None
