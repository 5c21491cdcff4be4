"""The request bodies of OpenAI's API, with the fields that vLLM adds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tandem.orchestrator.http.bodies.parts import (
    MAX_CHOICES,
    MAX_INT32,
    Body,
    ChoiceBody,
    Count,
    MessageBody,
    Number,
    PredictionBody,
    ResponseFormat,
    Seed,
    SpeculationBody,
    StreamOptions,
    StructuredOutputs,
    Texts,
    TokenId,
    TokenIds,
    ToolBody,
)


class GenerationBody(Body):
    """The fields that completions and chats share."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
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
    user: str | None = None  # client whose quota the request uses, if no header names it
    prompt_cache_key: str | None = None  # requests with the same key share cached prefixes
    response_format: ResponseFormat | None = None
    # Fields that vLLM adds to OpenAI's
    structured_outputs: StructuredOutputs | None = None
    # this field and the next three are vLLM's older names of structured outputs
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    # cached prefixes are shared only between requests with the same salt
    cache_salt: str | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    min_tokens: Count | None = None
    prompt_logprobs: Count | None = None
    return_token_ids: bool | None = None
    # Tandem's own field; if it is set, the answer also reports speculation statistics
    speculation: SpeculationBody | None = None


class CompletionBody(GenerationBody):
    """The body of `/v1/completions`."""

    prompt: str | list[Any]
    logprobs: Count | None = None
    echo: bool | None = None


class ChatBody(GenerationBody):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    add_generation_prompt: bool | None = None  # this field and the next exist only in vLLM's API
    chat_template_kwargs: dict[str, Any] | None = None
    # passed to the chat template as an argument of this name
    reasoning_effort: str | None = None
    safety_identifier: str | None = None
    prediction: PredictionBody | None = None
    tools: Annotated[list[ToolBody], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None  # this field and the next exist only in vLLM's API
    echo: Literal[False] | None = None

    @model_validator(mode="after")
    def _is_written_in_one_way(self) -> ChatBody:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message needs add_generation_prompt false")
        return self
