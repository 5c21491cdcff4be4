"""Check a client's request against the served model, and complete the request with defaults.

The module is pure. A field that is not implemented is never ignored silently: it causes an error
that names the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tandem.orchestrator.requests import options
from tandem.orchestrator.requests.options import first, sampling_params
from tandem.orchestrator.requests.request import Conversation, Request
from tandem.orchestrator.rounds.generation import RunRequest
from tandem.protos.errors import InvalidRequest, Violation
from tandem.protos.generation import NO_DEFAULTS, GenerationDefaults
from tandem.protos.streams import LONGEST_MATCH
from tandem.protos.types import DraftShape, ModelDescription
from tandem.protos.wire.sampling import problems

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024  # maximum length of a stop string
MAX_STOP_TOKENS = 4096
MAX_REQUEST_ID = 128  # maximum number of characters
OVERFLOW = "context_length_exceeded"  # OpenAI's code for a prompt that is too long


class Tokenise(Protocol):
    """Function that turns a prompt, or text that continues a prompt, into tokens."""

    def __call__(self, prompt: str | Conversation, special: bool = True) -> tuple[int, ...]:
        """Return the tokens of a prompt. `special` says whether to add special tokens to a text."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model, with the limits and the default options of requests."""

    description: ModelDescription
    shape: DraftShape  # the default draft shape
    max_prompt_bytes: int  # bytes of the longest text that may fit into the context
    special_tokens: Mapping[str, int]  # maps the text of each special token to its id
    generation: GenerationDefaults = NO_DEFAULTS


def checked(request: Request, served: ServedModel, tokenise: Tokenise) -> RunRequest:
    """Validate a request and return its run. The run's session id is left empty, because each start
    of the run gets a new session. Raises InvalidRequest, which names every invalid field.
    """
    model, stopping = served.description, request.stopping
    check_size(request, served)
    violations = _options(request, model)
    prompt = request.prompt or ()
    if isinstance(prompt, Conversation) and not prompt.messages:
        prompt = ()
    if not isinstance(prompt, tuple):
        prompt = tokenise(prompt)
    default = min(request.default_new_tokens, max(0, model.context_length - len(prompt)))
    most_new = default if stopping.max_new_tokens is None else stopping.max_new_tokens
    violations += [*_prompt(request, prompt, model), *_stopping(request, most_new)]
    violations += options.prompt_problems(request, len(prompt))
    ignoring = stopping.ignore_eos and not request.sampling.grammar
    ends = () if ignoring else model.end_token_ids
    special = [number for text, number in served.special_tokens.items() if text in stopping.stop]
    stop_token_ids = frozenset({*stopping.stop_token_ids, *ends, *special})
    defaults = served.generation
    sampling = sampling_params(request, len(prompt), stop_token_ids, defaults, model.end_token_ids)
    violations += problems(sampling)
    if stopping.min_new_tokens and len(stop_token_ids) >= model.vocab_size:
        violations.append(
            Violation("stopping.stop_token_ids", "leave no token for the first min_new_tokens")
        )
    if violations:
        raise InvalidRequest(*violations)
    return RunRequest(
        request_id=request.request_id,
        session_id=b"",
        prompt=prompt,
        sampling=sampling,
        max_new_tokens=most_new,
        stop_token_ids=stop_token_ids,
        shape=options.shape(request.speculation, served.shape),
        cache_scope=request.cache_scope,
        completion=request.received,
        known=_known(request, prompt, tokenise),
        prompt_logprobs=request.prompt_top_logprobs,
    )


def _known(request: Request, prompt: tuple[int, ...], tokenise: Tokenise) -> tuple[int, ...]:
    """Return the end of the prompt followed by the tokens of the prediction. Because the end of the
    prompt is included, suffix matching can draft even the first token of the answer from the
    prediction.
    """
    if not request.speculation.prediction:
        return ()
    return prompt[-LONGEST_MATCH:] + tokenise(request.speculation.prediction, special=False)


def check_size(request: Request, served: ServedModel) -> None:
    """Raise InvalidRequest for a prompt or prediction with too many bytes to fit the context."""
    prompt, model = request.prompt, served.description
    if isinstance(prompt, Conversation) and len(prompt.messages) > model.context_length:
        problem = f"has {len(prompt.messages)} messages; {_maximum(model)}"
        raise InvalidRequest(*_options(request, model), Violation("messages", problem, OVERFLOW))
    if isinstance(prompt, str):
        problem = too_long(len(prompt.encode()), served)
    else:
        problem = too_long(prompt.size(), served) if isinstance(prompt, Conversation) else ""
    if problem:
        violation = Violation(_prompt_field(request), problem, OVERFLOW)
        raise InvalidRequest(*_options(request, model), violation)
    if problem := too_long(len(request.speculation.prediction.encode()), served):
        raise InvalidRequest(
            *_options(request, model), Violation("speculation.prediction", problem)
        )


def too_long(size: int, served: ServedModel) -> str:
    """Return an error message if a text of `size` bytes is too long, and otherwise ""."""
    if size <= served.max_prompt_bytes:
        return ""
    most = f"or at most {served.max_prompt_bytes} bytes"
    return f"has {size} bytes; {_maximum(served.description)}, {most}"


def _maximum(model: ModelDescription) -> str:
    """State the context length in OpenAI's words, by which clients recognise overlong prompts."""
    return f"this model's maximum context length is {model.context_length} tokens"


def check_resumable(request: Request, served: ServedModel) -> None:
    """Raise InvalidRequest if a request wants to continue an answer that cannot be continued."""
    if violations := tuple(_resuming(request, served)):
        raise InvalidRequest(*violations)


def _resuming(request: Request, served: ServedModel) -> Iterator[Violation]:
    """Yield the reasons why an answer cannot be continued. The rest of an answer must be sampled
    with the same seed as its beginning, so a request with a nonzero temperature must give the seed.
    """
    sampling, received = request.sampling, len(request.received)
    temperature = first(sampling.temperature, served.generation.temperature, 1.0)
    if request.resume_from not in (0, received):
        problem = f"is {request.resume_from}, but received has {received} tokens"
        yield Violation("resume_from", problem)
    if received and temperature != 0 and sampling.seed is None:
        yield Violation("received", "needs sampling.seed, or temperature 0")


def _options(request: Request, model: ModelDescription) -> list[Violation]:
    """Return the violations that do not depend on the prompt."""
    return [
        *options.speculation_problems(request.speculation),
        *request.malformed,
        *_vocabulary(request, model.vocab_size),
        *model_problems(request.model, model),
        *_request_id(request.request_id),
    ]


def _vocabulary(request: Request, vocab_size: int) -> Iterator[Violation]:
    for field, tokens in (
        ("sampling.logit_bias", [token for token, _ in request.sampling.logit_bias]),
        ("stopping.stop_token_ids", request.stopping.stop_token_ids),
        ("received", request.received),
    ):
        if tokens and max(tokens) >= vocab_size:
            limit = f"has token {max(tokens)}, above the vocabulary's last token, {vocab_size - 1}"
            yield Violation(field, limit)


def _stopping(request: Request, most_new: int) -> Iterator[Violation]:
    stopping, received = request.stopping, len(request.received)
    if received > most_new:
        yield Violation("received", f"has {received} tokens, above max_new_tokens, {most_new}")
    if stopping.min_new_tokens > most_new:
        limit = f"is {stopping.min_new_tokens}, above max_new_tokens, {most_new}"
        yield Violation("stopping.min_new_tokens", limit)
    if len(stopping.stop) > MAX_STOP_STRINGS:
        yield Violation(
            "stopping.stop", f"has {len(stopping.stop)} strings, above {MAX_STOP_STRINGS}"
        )
    if len(stopping.stop_token_ids) > MAX_STOP_TOKENS:
        found = f"has {len(stopping.stop_token_ids)} tokens, above {MAX_STOP_TOKENS}"
        yield Violation("stopping.stop_token_ids", found)
    longest = max(map(len, stopping.stop), default=0)
    if longest > MAX_STOP_CHARACTERS:
        found = f"has a string of {longest} characters, above {MAX_STOP_CHARACTERS}"
        yield Violation("stopping.stop", found)
    if "" in stopping.stop:
        yield Violation("stopping.stop", "has an empty string")


def model_problems(name: str, served: ModelDescription) -> Iterator[Violation]:
    """Yield a violation if a request names a model that is not served. An empty name means the
    served model.
    """
    if name and name != served.name:
        yield Violation("model", f"is {name!r}, but the served model is {served.name!r}")


def is_request_id(given: str) -> bool:
    """Whether a text can be a request id, which must be short and fit into gRPC metadata."""
    return len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable()


def _request_id(request_id: str) -> Iterator[Violation]:
    if not is_request_id(request_id):
        yield Violation(
            "request_id", f"must be at most {MAX_REQUEST_ID} printable ASCII characters"
        )


def _prompt_field(request: Request) -> str:
    """Return the name of the request field that contains the prompt."""
    match request.prompt:
        case None:
            return "prompt"
        case str():
            return "text"
        case Conversation():
            return "messages"
    return "token_ids"


def _prompt(
    request: Request, prompt: tuple[int, ...], model: ModelDescription
) -> Iterator[Violation]:
    field = _prompt_field(request)
    most_new = request.stopping.max_new_tokens
    wanted = 1 if most_new is None else most_new
    if not prompt:
        yield Violation(field, "is empty")
    elif max(prompt) >= model.vocab_size:
        yield Violation(
            field,
            f"has token {max(prompt)}, above the vocabulary's last token, {model.vocab_size - 1}",
        )
    elif len(prompt) + min(1, wanted) > model.context_length:
        problem = f"has {len(prompt)} tokens, which leave no room for an answer; {_maximum(model)}"
        yield Violation(field, problem, OVERFLOW)
    elif len(prompt) + wanted > model.context_length:
        problem = f"is {wanted}, after a prompt of {len(prompt)} tokens; {_maximum(model)}"
        yield Violation("stopping.max_new_tokens", problem, OVERFLOW)
