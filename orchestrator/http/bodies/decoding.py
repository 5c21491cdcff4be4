"""Turn HTTP bodies into requests, and translate the field names in errors to those of the body.

The module is pure. The caller of a request is passed as an argument, because only the request's
headers identify the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tandem.orchestrator.http.bodies.grammars import grammar_of
from tandem.orchestrator.http.bodies.parts import (
    MAX_CHOICES,
    MAX_INT32,
    MAX_INT64,
    ChoiceBody,
    MessageBody,
    TokenIds,
    ToolBody,
)
from tandem.orchestrator.http.bodies.schema import ChatBody, CompletionBody, GenerationBody
from tandem.orchestrator.requests.request import (
    CHOICES,
    ChatMessage,
    Conversation,
    Request,
    Sampling,
    Speculation,
    Stopping,
    Tool,
    ToolCall,
)
from tandem.protos.errors import InvalidRequest

COMPLETION_TOKENS = 16  # OpenAI's default length of completions; chats may fill the context
RENAMED = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "text": "prompt",
    "token_ids": "prompt",
    "template_arguments": "chat_template_kwargs",
}
SAMPLING = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
# request ids are cut to this many characters before the index of the choice is appended
MAX_ID_LENGTH = 120
IDS = TypeAdapter[list[int]](TokenIds, config=ConfigDict(strict=True))


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and the request's id. `cache_scope` says whose cached prefixes the
    request may use, and `client_id` says whose quota the request uses.
    """

    cache_scope: bytes
    client_id: bytes
    request_id: str


def completions(body: CompletionBody, caller: Caller) -> tuple[Request, ...]:
    """Return one request for each choice of each prompt of the body. Raises InvalidRequest."""
    prompts, count = _prompts(body.prompt), body.n or 1
    if len(prompts) * count > MAX_CHOICES:
        problem = f"has {len(prompts)} prompts with n = {count}, above {MAX_CHOICES} choices in all"
        raise InvalidRequest.of("prompt", problem)
    first = [_request(body, prompt, caller, body.logprobs, COMPLETION_TOKENS) for prompt in prompts]
    return _numbered(choice for each in first for choice in _choices(each, count))


def chats(body: ChatBody, caller: Caller) -> tuple[Request, ...]:
    """Return one request for each choice that a chat asks for. Raises InvalidRequest."""
    return _numbered(_choices(_chat(body, caller), body.n or 1))


def _choices(request: Request, count: int) -> Iterator[Request]:
    """Yield `count` copies of a request, each with a seed one higher than the copy before."""
    for index in range(count):
        sampling = request.sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + index) % (MAX_INT64 + 1))
        yield replace(request, sampling=sampling)


def _numbered(requests: Iterable[Request]) -> tuple[Request, ...]:
    """Give each request a unique id. The first request keeps the id of the whole response."""
    first, *others = requests
    named = (f"{first.request_id[:MAX_ID_LENGTH]}-{index}" for index in range(1, 1 + len(others)))
    pairs = zip(others, named, strict=True)
    return first, *(replace(each, request_id=name) for each, name in pairs)


def _chat(body: ChatBody, caller: Caller) -> Request:
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        problem = f"is {body.max_completion_tokens}, but max_tokens is {body.max_tokens}"
        raise InvalidRequest.of("max_completion_tokens", problem)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest.of("top_logprobs", "needs logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    conversation = conversation_of(body)
    return _request(body, conversation, caller, logprobs, MAX_INT32, body.max_completion_tokens)


def conversation_of(body: ChatBody) -> Conversation:
    """Return the conversation in a chat body, which the chat template renders as the prompt."""
    tools = body.tools if body.tools and body.tool_choice != "none" else []
    chosen = body.tool_choice
    choice = chosen.function.name if isinstance(chosen, ChoiceBody) else chosen
    continued = bool(body.continue_final_message)
    prompted = body.add_generation_prompt
    return Conversation(
        tuple(map(_message, body.messages)),
        not continued if prompted is None else prompted,
        _template_arguments(body),
        tuple(map(_tool, tools)),
        choice if choice and choice != "none" else "auto",
        body.parallel_tool_calls is not False,
        continued,
    )


def _tool(body: ToolBody) -> Tool:
    function = body.function
    return Tool(function.name, function.description, function.parameters, bool(function.strict))


def _message(body: MessageBody) -> ChatMessage:
    return ChatMessage(
        body.role,
        body.text,
        body.name or "",
        body.reasoning_content or body.reasoning or "",
        tuple(
            ToolCall(each.function.name, each.function.arguments, each.id)
            for each in body.tool_calls or ()
        ),
        body.tool_call_id or "",
    )


def _template_arguments(body: ChatBody) -> dict[str, Any]:
    effort = {"reasoning_effort": body.reasoning_effort} if body.reasoning_effort else {}
    return effort | (body.chat_template_kwargs or {})


def needs_stream() -> InvalidRequest:
    """Return the error for a body that has `stream_options` but does not ask for a stream."""
    return InvalidRequest.of("stream_options", "needs stream")


def renamed(error: InvalidRequest, body: GenerationBody) -> InvalidRequest:
    """Return the error with its field names translated to those of the body."""
    names, (grammar, field_name) = dict(RENAMED), grammar_of(body)
    if isinstance(body, ChatBody):
        names["logprobs"] = "top_logprobs"
        if body.max_completion_tokens is not None:
            names["max_new_tokens"] = "max_completion_tokens"

    def name(field: str) -> str:
        if field.startswith("speculation."):
            return field
        if grammar and field == grammar.field:
            return field_name
        last = field.rpartition(".")[2] if "[" not in field else field.partition(".")[2]
        return names.get(last, last)

    return InvalidRequest(*(replace(v, field=name(v.field)) for v in error.violations))


def _request(
    body: GenerationBody,
    prompt: str | tuple[int, ...] | Conversation,
    caller: Caller,
    logprobs: int | None,
    default_new_tokens: int,
    most_new: int | None = None,
) -> Request:
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest.of("prompt_logprobs", "cannot be combined with stream, as in vLLM")
    given = {name: getattr(body, name) for name in SAMPLING}
    sampling = {name: value for name, value in given.items() if value is not None}
    if body.seed is not None:
        sampling["seed"] = body.seed % (MAX_INT64 + 1)  # the gRPC API has no negative seeds
    if body.top_k is not None:
        sampling["top_k"] = max(0, body.top_k)  # vLLM clients send -1 for "off"; Tandem uses 0
    biases = sorted((int(token), bias) for token, bias in (body.logit_bias or {}).items())
    return Request(
        prompt,
        caller.request_id,
        body.model or "",
        Sampling(**sampling, logit_bias=tuple(biases), grammar=grammar_of(body)[0]),
        Stopping(
            body.max_tokens if most_new is None else most_new,
            body.min_tokens or 0,
            (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
            tuple(body.stop_token_ids or ()),
            bool(body.ignore_eos),
        ),
        _speculation(body),
        logprobs,
        body.prompt_logprobs,
        isinstance(body, CompletionBody) and bool(body.echo),
        bool(body.return_token_ids),
        cache_scope=caller.cache_scope,
        client_id=caller.client_id,
        default_new_tokens=default_new_tokens,
    )


def _speculation(body: GenerationBody) -> Speculation:
    """Return the speculation options of a body. A chat body may instead have the prediction in
    OpenAI's field `prediction`.
    """
    given = body.speculation.model_dump(exclude_none=True) if body.speculation else {}
    for name, kind in CHOICES.items():
        if name in given:
            given[name] = kind[given[name].upper()]
    if isinstance(body, ChatBody) and body.prediction:
        given["prediction"] = body.prediction.text
    return Speculation(**given)


def _prompts(prompt: str | list[Any]) -> list[str | tuple[int, ...]]:
    """Return the prompts of a body whose `prompt` is a string, token ids, or a list of either."""
    several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    return [_prompt(each) for each in (prompt if several else [prompt])]


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    try:
        return tuple(IDS.validate_python(prompt))
    except ValidationError:
        raise InvalidRequest.of("prompt", "is neither a text nor a list of token ids") from None
