"""A client's request, checked against what is served and completed with defaults.

Pure. What is not implemented is refused by the field's name: nothing is silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from orchestrator.frontend import speculation
from protos.errors import InvalidRequest, Violation
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.tandem.v1 import rounds_pb2
from protos.types import EXACT, DraftShape, ModelDescription, SamplingParams
from protos.wire.drafting import encode_shape
from protos.wire.sampling import encode_sampling, problems

DEFAULT_MAX_NEW_TOKENS = 128
MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 4096
LONGEST_REQUEST_ID = 128

Fields = Iterator[Violation]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served model allows."""

    model: ModelDescription
    shape: DraftShape
    longest_prompt: int  # bytes of text that may fit into the context
    special_tokens: Mapping[str, int]  # they have no text


def order(
    request: api.GenerateRequest,
    request_id: str,
    limits: Limits,
    tokenise: Callable[[str], list[int]],
) -> rounds_pb2.RunRequest:
    """What the round worker gets: the request checked and completed, all but its seed. Raises
    InvalidRequest naming every bad field.
    """
    violations = [
        *speculation.problems(request.speculation),
        *_vocabulary(request, limits.model.vocab_size),
        *_model(request.model, limits.model),
        *_request_id(request_id),
    ]
    prompt = list(request.token_ids.ids)
    if request.WhichOneof("prompt") == "text":
        size = len(request.text.encode())
        if size > limits.longest_prompt:
            whole = f"the context of {limits.model.context_length} tokens can hold"
            most = f"the {limits.longest_prompt} that {whole}"
            raise InvalidRequest(*violations, Violation("text", f"has {size} bytes, above {most}"))
        prompt = tokenise(request.text)
    stopping, room = request.stopping, limits.model.context_length - len(prompt)
    default = min(DEFAULT_MAX_NEW_TOKENS, max(0, room))
    violations += [*_prompt(request, prompt, limits.model), *_stopping(stopping, default)]
    ends = () if stopping.ignore_eos else limits.model.end_token_ids
    special = [number for text, number in limits.special_tokens.items() if text in stopping.stop]
    stops = sorted({*stopping.stop_token_ids, *ends, *special})
    sampling = _sampling_params(request, len(prompt), stops)
    violations += problems(sampling)
    if stopping.min_new_tokens and len(stops) >= limits.model.vocab_size:
        violations.append(
            Violation("stopping.stop_token_ids", "leave no other token to come first")
        )
    if violations:
        raise InvalidRequest(*violations)
    sampling = replace(sampling, rule=speculation.rule(request.speculation))
    return rounds_pb2.RunRequest(
        request_id=request_id,
        prompt=prompt,
        sampling=encode_sampling(sampling),
        max_new_tokens=stopping.max_new_tokens if stopping.HasField("max_new_tokens") else default,
        stop_token_ids=stops,
        shape=encode_shape(speculation.shape(request.speculation, limits.shape)),
    )


def check_resumable(request: api.StreamGenerateRequest, model: ModelDescription) -> None:
    """Raise InvalidRequest if it is to be continued and its text is no function of the request."""
    if not request.resume_from:
        return
    sampling, rule = request.request.sampling, request.request.speculation.rule
    greedy = sampling.HasField("temperature") and sampling.temperature == 0
    if model.exactness != EXACT:
        needs = f"rows of the same bits in any company; the verifier's are {model.exactness}"
    elif not (greedy or sampling.HasField("seed")):
        needs = "sampling.seed, or temperature 0"
    elif not greedy and rule in (api.ACCEPTANCE_RULE_REJECT, api.ACCEPTANCE_RULE_TOP1):
        needs = f"rule MATCH: under {api.AcceptanceRule.Name(rule)} drafts may differ"
    else:
        return
    raise InvalidRequest.of("resume_from", f"needs {needs}")


def _sampling_params(
    request: api.GenerateRequest, prompt_length: int, end_tokens: list[int]
) -> SamplingParams:
    wish = request.sampling
    return SamplingParams(
        temperature=wish.temperature if wish.HasField("temperature") else 1.0,
        top_k=wish.top_k,
        top_p=wish.top_p if wish.HasField("top_p") else 1.0,
        seed=wish.seed,
        min_p=wish.min_p,
        repetition_penalty=wish.repetition_penalty if wish.HasField("repetition_penalty") else 1.0,
        presence_penalty=wish.presence_penalty,
        frequency_penalty=wish.frequency_penalty,
        logit_bias=tuple(sorted(wish.logit_bias.items())),
        prompt_length=prompt_length,
        min_new_tokens=request.stopping.min_new_tokens,
        end_tokens=tuple(end_tokens),
        logprobs=request.logprobs if request.HasField("logprobs") else None,
    )


def _vocabulary(request: api.GenerateRequest, vocab_size: int) -> Fields:
    for field, tokens in (
        ("sampling.logit_bias", list(request.sampling.logit_bias)),
        ("stopping.stop_token_ids", list(request.stopping.stop_token_ids)),
    ):
        if tokens and max(tokens) >= vocab_size:
            limit = f"has token {max(tokens)}, above the vocabulary's last, {vocab_size - 1}"
            yield Violation(field, limit)


def _stopping(stopping: api.Stopping, default: int) -> Fields:
    if stopping.HasField("max_new_tokens") and stopping.max_new_tokens == 0:
        yield Violation("stopping.max_new_tokens", "is 0, below 1")
    most = stopping.max_new_tokens if stopping.HasField("max_new_tokens") else default
    if stopping.min_new_tokens > most:
        limit = f"is {stopping.min_new_tokens}, above max_new_tokens, {most}"
        yield Violation("stopping.min_new_tokens", limit)
    if len(stopping.stop) > MAX_STOP_STRINGS:
        yield Violation(
            "stopping.stop", f"has {len(stopping.stop)} strings, above {MAX_STOP_STRINGS}"
        )
    if len(stopping.stop_token_ids) > MAX_STOP_TOKENS:
        found = f"has {len(stopping.stop_token_ids)} tokens, above {MAX_STOP_TOKENS}"
        yield Violation("stopping.stop_token_ids", found)
    if "" in stopping.stop:
        yield Violation("stopping.stop", "has an empty string")


def _model(name: str, served: ModelDescription) -> Fields:
    if name and name != served.name:
        yield Violation("model", f"is {name!r}; served is {served.name!r}")


def _request_id(request_id: str) -> Fields:
    if not (
        len(request_id) <= LONGEST_REQUEST_ID and request_id.isascii() and request_id.isprintable()
    ):
        yield Violation(
            "request_id", f"is not at most {LONGEST_REQUEST_ID} printable ASCII characters"
        )


def _prompt(request: api.GenerateRequest, prompt: list[int], model: ModelDescription) -> Fields:
    field = request.WhichOneof("prompt") or "prompt"
    wanted = request.stopping.max_new_tokens or 1
    if not prompt:
        yield Violation(field, "is empty")
    elif max(prompt) >= model.vocab_size:
        yield Violation(
            field, f"has token {max(prompt)}, above the vocabulary's last, {model.vocab_size - 1}"
        )
    elif len(prompt) >= model.context_length:
        room = f"leave no room in the context of {model.context_length}"
        yield Violation(field, f"has {len(prompt)} tokens, which {room}")
    elif len(prompt) + wanted > model.context_length:
        problem = (
            f"is {wanted}: with a prompt of {len(prompt)} tokens"
            f" it exceeds the context of {model.context_length}"
        )
        yield Violation("stopping.max_new_tokens", problem)
