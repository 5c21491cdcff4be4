"""A client's request, checked against what is served and completed with defaults.

Pure. What is not implemented is refused by the field's name: nothing is silently ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from protos import codec
from protos.errors import InvalidRequest, Violation
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.tandem.v1 import rounds_pb2
from protos.types import MAX_LEVELS, MAX_NODES, DraftShape, ModelDescription, SamplingParams

DEFAULT_MAX_NEW_TOKENS = 128
MAX_STOP_STRINGS = 16
LONGEST_REQUEST_ID = 128

Fields = Iterator[Violation]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served model allows."""

    model: ModelDescription
    default_shape: DraftShape
    longest_prompt: int  # bytes of text that may fit into the context


@dataclass(frozen=True, slots=True)
class Order:
    """A request that can be run: what the round worker gets, and what only the front end needs."""

    run: rounds_pb2.RunRequest
    stop: tuple[str, ...]


def order(
    request: api.GenerateRequest,
    request_id: str,
    seed: int,
    limits: Limits,
    tokenise: Callable[[str], list[int]],
) -> Order:
    """Check and complete a request; `seed` is used if it has none. Raises InvalidRequest naming
    every bad field.
    """
    violations = [
        *_unsupported(request),
        *_sampling(request.sampling),
        *_stopping(request.stopping),
    ]
    violations += [
        *_speculation(request.speculation),
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
    violations += _prompt(request, prompt, limits.model)
    if violations:
        raise InvalidRequest(*violations)
    stopping, room = request.stopping, limits.model.context_length - len(prompt)
    ends = () if stopping.ignore_eos else limits.model.end_token_ids
    default = min(DEFAULT_MAX_NEW_TOKENS, room)
    run = rounds_pb2.RunRequest(
        request_id=request_id,
        prompt=prompt,
        sampling=codec.encode_sampling(_sampling_params(request.sampling, seed)),
        max_new_tokens=stopping.max_new_tokens if stopping.HasField("max_new_tokens") else default,
        stop_token_ids=sorted({*stopping.stop_token_ids, *ends}),
        shape=codec.encode_shape(_shape(request.speculation, limits.default_shape)),
    )
    return Order(run, tuple(stopping.stop))


def _sampling_params(sampling: api.Sampling, seed: int) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature if sampling.HasField("temperature") else 1.0,
        top_k=sampling.top_k,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        seed=sampling.seed if sampling.HasField("seed") else seed,
    )


def _shape(wish: api.Speculation, default: DraftShape) -> DraftShape:
    """Levels and branches as wished. Who names the branches gets levels x branches nodes, else the
    default budget.
    """
    levels = (
        wish.num_speculative_tokens if wish.HasField("num_speculative_tokens") else default.levels
    )
    branches = wish.branches if wish.HasField("branches") else default.branches
    budget = MAX_NODES if wish.HasField("branches") or branches == 1 else default.nodes
    return DraftShape(levels, branches, min(budget, levels * branches))


def _unsupported(request: api.GenerateRequest) -> Fields:
    """Fields of the API that this version does not implement, if they ask for something."""
    asked = {
        "sampling.min_p": request.sampling.min_p != 0,
        "sampling.repetition_penalty": request.sampling.HasField("repetition_penalty")
        and request.sampling.repetition_penalty != 1,
        "sampling.presence_penalty": request.sampling.presence_penalty != 0,
        "sampling.frequency_penalty": request.sampling.frequency_penalty != 0,
        "sampling.logit_bias": bool(request.sampling.logit_bias),
        "stopping.min_new_tokens": request.stopping.min_new_tokens != 0,
        "logprobs": request.HasField("logprobs"),
        "speculation.drafter": bool(request.speculation.drafter),
    }
    yield from (Violation(name, "is not supported") for name, is_asked in asked.items() if is_asked)
    if request.speculation.rule not in (api.ACCEPTANCE_RULE_UNSPECIFIED, api.ACCEPTANCE_RULE_MATCH):
        yield Violation("speculation.rule", "is not supported; only MATCH is")


def _sampling(sampling: api.Sampling) -> Fields:
    if sampling.HasField("temperature") and not (
        math.isfinite(sampling.temperature) and sampling.temperature >= 0
    ):
        yield Violation(
            "sampling.temperature", f"is {sampling.temperature:g}, below 0 or not finite"
        )
    if sampling.HasField("top_p") and not 0 < sampling.top_p <= 1:
        yield Violation("sampling.top_p", f"is {sampling.top_p:g}, not above 0 and at most 1")


def _stopping(stopping: api.Stopping) -> Fields:
    if stopping.HasField("max_new_tokens") and stopping.max_new_tokens == 0:
        yield Violation("stopping.max_new_tokens", "is 0, below 1")
    if len(stopping.stop) > MAX_STOP_STRINGS:
        yield Violation(
            "stopping.stop", f"has {len(stopping.stop)} strings, above {MAX_STOP_STRINGS}"
        )
    if "" in stopping.stop:
        yield Violation("stopping.stop", "has an empty string")


def _speculation(wish: api.Speculation) -> Fields:
    if wish.num_speculative_tokens > MAX_LEVELS:
        limit = f"is {wish.num_speculative_tokens}, above {MAX_LEVELS}"
        yield Violation("speculation.num_speculative_tokens", limit)
    if wish.HasField("branches") and not 1 <= wish.branches <= MAX_NODES:
        yield Violation("speculation.branches", f"is {wish.branches}, not in 1..{MAX_NODES}")


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
