"""Bodies to requests, and the names of a request's fields to those of a body.

Pure. Who asks, and under which name, comes from the headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from tandem.orchestrator.http import tolerance
from tandem.orchestrator.http.grammars import grammar_of
from tandem.orchestrator.http.schema import (
    MOST_32,
    MOST_64,
    ChatBody,
    CompletionBody,
    GenerationBody,
    TokenIds,
)
from tandem.orchestrator.requests.request import (
    ChatMessage,
    Conversation,
    Request,
    Sampling,
    Stopping,
)
from tandem.protos.errors import InvalidRequest, Violation

COMPLETION_TOKENS = 16  # OpenAI's default for completions; that for chats is all that fits
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
MOST_MISTAKES, LONGEST_NAME = 32, 64
MISTAKES = {"missing": "is missing", "extra_forbidden": "is not supported"}
IDS = TypeAdapter[list[int]](TokenIds, config=ConfigDict(strict=True))
Parsed = TypeVar("Parsed", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: whose cached prefixes may be used, whose share of the places it takes, and under
    which id.
    """

    client: bytes
    share: bytes
    request_id: str


def parsed(kind: type[Parsed], content: bytes) -> tuple[Parsed, tuple[str, ...]]:
    """A body, and the names of what is ignored in it; raises InvalidRequest naming every field that
    is wrong, and no value.
    """
    try:
        body = from_json(content)
    except ValueError:
        raise InvalidRequest.of("body", "is not JSON") from None
    if not isinstance(body, dict):
        raise InvalidRequest.of("body", "is not an object")
    left, ignored = tolerance.without_effect(body)
    try:
        return kind.model_validate(left), ignored
    except ValidationError as error:
        raise InvalidRequest(*_violations(error)) from None


def completion(body: CompletionBody, caller: Caller) -> Request:
    """A request to continue a text; raises InvalidRequest."""
    return _request(body, _prompt(body.prompt), caller, body.logprobs, COMPLETION_TOKENS)


def chat(body: ChatBody, caller: Caller) -> Request:
    """A request to answer a conversation; raises InvalidRequest."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        problem = f"is {body.max_completion_tokens}, but max_tokens is {body.max_tokens}"
        raise InvalidRequest.of("max_completion_tokens", problem)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest.of("top_logprobs", "needs logprobs")
    conversation = Conversation(
        tuple(ChatMessage(each.role, each.text, each.name or "") for each in body.messages),
        body.add_generation_prompt is not False,
        _template_arguments(body),
    )
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _request(body, conversation, caller, logprobs, MOST_32, body.max_completion_tokens)


def _template_arguments(body: ChatBody) -> dict[str, Any]:
    effort = {"reasoning_effort": body.reasoning_effort} if body.reasoning_effort else {}
    return effort | (body.chat_template_kwargs or {})


def needs_stream() -> InvalidRequest:
    """What is wrong with options of a stream where there is none."""
    return InvalidRequest.of("stream_options", "needs stream")


def renamed(error: InvalidRequest, body: GenerationBody) -> InvalidRequest:
    """The same error in the words of the body."""
    names, (grammar, place) = dict(RENAMED), grammar_of(body)
    if isinstance(body, ChatBody):
        names["logprobs"] = "top_logprobs"
        if body.max_completion_tokens is not None:
            names["max_new_tokens"] = "max_completion_tokens"

    def name(field: str) -> str:
        if grammar and field == grammar.field:
            return place
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
    given = {name: getattr(body, name) for name in SAMPLING}
    sampling = {name: value for name, value in given.items() if value is not None}
    if body.seed is not None:
        sampling["seed"] = body.seed % (MOST_64 + 1)  # gRPC's have no sign
    if body.top_k is not None:
        sampling["top_k"] = max(0, body.top_k)  # vLLM's -1 is off
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
        logprobs=logprobs,
        client=caller.client,
        share=caller.share,
        default_new_tokens=default_new_tokens,
    )


def _prompt(prompt: str | list[Any]) -> str | tuple[int, ...]:
    """A text or token ids, also as the only one of a list."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise InvalidRequest.of("prompt", f"has {len(prompt)} prompts, above 1")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    try:
        return tuple(IDS.validate_python(prompt))
    except ValidationError:
        raise InvalidRequest.of("prompt", "is not a text, or a list of token ids") from None


def _violations(error: ValidationError) -> Iterator[Violation]:
    if error.error_count() > MOST_MISTAKES:
        yield Violation("body", f"has {error.error_count()} mistakes")
        return
    deepest: dict[str, Violation] = {}  # of a field, of whose kinds of values each was tried
    for found in error.errors(include_url=False, include_input=False):
        kind, place = found["type"], _place(found["loc"])
        field = next((each for each in deepest if place.startswith((f"{each}[", f"{each}."))), "")
        problem = MISTAKES.get(kind) or f"is wrong: {found['msg']}"
        if kind == "extra_forbidden" and place in tolerance.NEUTRAL:
            problem = f"is not supported but with {tolerance.accepted(place)}"
        deepest.pop(field, None)
        deepest.setdefault(place, Violation(place, problem))
    yield from deepest.values()


def _place(location: tuple[int | str, ...]) -> str:
    """`messages[0].content`, without the kinds of values that were tried."""
    first, *others = location or ("body",)
    place = str(first)[:LONGEST_NAME]
    for part in others:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part.isidentifier() and part != "str":
            place += f".{part[:LONGEST_NAME]}"
    return place
