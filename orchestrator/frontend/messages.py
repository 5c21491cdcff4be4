"""Messages of the client API: to requests, and from chunks, answers and the status."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from tandem.orchestrator.fleet.replicas import ReplicaStatus
from tandem.orchestrator.frontend.history import Figures
from tandem.orchestrator.frontend.status import Status
from tandem.orchestrator.metrics import SpeculationStats
from tandem.orchestrator.requests.answer import Answer, Chunk
from tandem.orchestrator.requests.request import (
    ChatMessage,
    Conversation,
    Request,
    Sampling,
    Speculation,
    Stopping,
    connection_digest,
    scope_of,
)
from tandem.protos.errors import InvalidRequest, Violation
from tandem.protos.grammar import Grammar, GrammarKind
from tandem.protos.types import Method, Rule, Schedule, TokenLogprobs
from tandem.protos.wire.drafting import decode_choice
from tandem.v1 import orchestrator_pb2 as api

MAX_ARGUMENTS_BYTES = 64 << 10  # they are decoded before a request has a place
CHOICES = {"rule": Rule, "method": Method, "schedule": Schedule}


def decode_request(
    message: api.GenerateRequest,
    client: bytes = b"",
    connection: str = "",
    resume_from: int = 0,
    received: tuple[int, ...] = (),
) -> Request:
    """Message to request; one without a client has the share of its connection."""
    sampling, stopping = message.sampling, message.stopping
    speculation, malformed = _given(message.speculation), list[Violation]()
    for field, choice in CHOICES.items():
        try:
            if number := speculation.pop(field, 0):
                speculation[field] = decode_choice(f"speculation.{field}", choice, number)
        except InvalidRequest as unknown:
            malformed += unknown.violations
    given = _given(sampling) | {"logit_bias": tuple(sorted(sampling.logit_bias.items()))}
    if name := sampling.WhichOneof("grammar"):
        given["grammar"] = _grammar(name, given.pop(name))
    lists = {"stop": tuple(stopping.stop), "stop_token_ids": tuple(stopping.stop_token_ids)}
    return Request(
        decode_prompt(message),
        message.request_id,
        message.model,
        Sampling(**given),
        Stopping(**_given(stopping) | lists),
        Speculation(**speculation),
        message.logprobs if message.HasField("logprobs") else None,
        resume_from,
        received,
        scope_of(client, message.cache_salt),
        client or connection_digest(connection),
        tuple(malformed),
    )


def _grammar(name: str, value: Any) -> Grammar | None:
    match value:
        case str():
            return Grammar(GrammarKind[name.upper()], value)
        case bool():
            return Grammar(GrammarKind.JSON_OBJECT) if value else None
    return Grammar.choice(value.texts)


def _given(message: Message) -> dict[str, Any]:
    """The fields that are set, zero or not."""
    return {field.name: value for field, value in message.ListFields()}


def decode_prompt(message: api.GenerateRequest) -> str | tuple[int, ...] | Conversation | None:
    """What is to be continued; None if there is nothing."""
    match message.WhichOneof("prompt"):
        case "text":
            return message.text
        case "token_ids":
            return tuple(message.token_ids.ids)
        case "messages":
            return _conversation(message.messages)
    return None


def _conversation(chat: api.Messages) -> Conversation:
    size = chat.template_arguments.ByteSize()
    if size > MAX_ARGUMENTS_BYTES:
        problem = f"have {size} bytes, above {MAX_ARGUMENTS_BYTES}"
        raise InvalidRequest.of("messages.template_arguments", problem)
    messages = (ChatMessage(each.role, each.content, each.name) for each in chat.messages)
    prompted = chat.add_generation_prompt or not chat.HasField("add_generation_prompt")
    try:
        arguments = MessageToDict(chat.template_arguments)
    except ValueError:
        problem = "has a number that is not finite"
        raise InvalidRequest.of("messages.template_arguments", problem) from None
    whole = {name: _whole(value) for name, value in arguments.items()}
    return Conversation(tuple(messages), prompted, whole)


def _whole(value: object) -> object:
    """A Struct has numbers of one kind; templates count with whole ones."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def encode_chunk(chunk: Chunk) -> api.Chunk:
    """Chunk to message."""
    return api.Chunk(
        text=chunk.text,
        token_ids=chunk.token_ids,
        completion_tokens=chunk.completion_tokens,
        logprobs=_encode_logprobs(chunk.logprobs),
        request_id=chunk.request_id,
        seed=chunk.seed,
    )


def encode_answer(answer: Answer) -> api.GenerateResponse:
    """Answer to message."""
    response = api.GenerateResponse(
        request_id=answer.request_id,
        text=answer.text,
        token_ids=answer.token_ids,
        finish_reason=api.FinishReason.ValueType(answer.finish.value if answer.finish else 0),
        usage=api.Usage(
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=len(answer.token_ids),
            cached_tokens=answer.cached_tokens,
        ),
        timing=api.Timing(
            queue_seconds=answer.queue_seconds,
            time_to_first_token_seconds=answer.first_token_seconds,
            total_seconds=answer.total_seconds,
        ),
        speculation=encode_stats(answer.speculation, answer.rule),
        seed=answer.seed,
        logprobs=_encode_logprobs(answer.logprobs),
    )
    if isinstance(answer.matched_stop, str):
        response.matched_text = answer.matched_stop
    elif answer.matched_stop is not None:
        response.matched_token_id = answer.matched_stop
    return response


def encode_stats(stats: SpeculationStats, rule: Rule) -> api.SpeculationSummary:
    """Figures to message."""
    return api.SpeculationSummary(
        num_spec_steps=stats.steps,
        num_steps_with_guesses=stats.steps_with_guesses,
        num_draft_tokens=stats.drafted,
        num_accepted_draft_tokens=stats.accepted,
        mean_acceptance_length=stats.mean_acceptance_length,
        draft_acceptance_rate=stats.draft_acceptance_rate,
        acceptance_histogram=stats.acceptance_histogram,
        num_late_draft_tokens=stats.late,
        num_unused_draft_tokens=stats.unused,
        fallback_rounds=stats.fallback_steps,
        drafter_switches=stats.drafter_switches,
        verifier_switches=stats.verifier_switches,
        verifier_group_changes=stats.verifier_group_changes,
        rule=api.AcceptanceRule.ValueType(rule.value),
    )


def _encode_logprobs(logprobs: tuple[TokenLogprobs, ...]) -> list[api.TokenLogprobs]:
    return [
        api.TokenLogprobs(
            logprob=each.logprob,
            top_ids=[token for token, _ in each.top],
            top_logprobs=[value for _, value in each.top],
        )
        for each in logprobs
    ]


def encode_status(status: Status, with_history: bool) -> api.GetStatusResponse:
    """Status to message."""
    model = api.ModelStatus(
        name=status.model,
        tokenizer_fingerprint=status.tokenizer_fingerprint,
        verifiers=map(encode_replica, status.verifiers),
        drafters=map(encode_replica, status.drafters),
        requests_running=status.running,
        requests_waiting=status.waiting,
        clients=(
            api.ClientStatus(name=each.name, running=each.running, waiting=each.waiting)
            for each in status.clients
        ),
        last_minute=encode_figures(status.last_minute),
        history=map(encode_figures, status.history if with_history else ()),
    )
    return api.GetStatusResponse(
        version=version("tandem-serving"),
        models=[model],
        problems=status.problems,
    )


def encode_figures(figures: Figures) -> api.RecentFigures:
    """Figures to message."""
    return api.RecentFigures(
        seconds=figures.seconds,
        tokens_per_second=figures.tokens_per_second,
        acceptance_rate=figures.acceptance_rate,
        mean_acceptance_length=figures.mean_acceptance_length,
        goodput_with_drafts=figures.goodput_with_drafts,
        goodput_without_drafts=figures.goodput_without_drafts,
        requests_finished=figures.finished,
        requests_failed=figures.failed,
        requests_running=figures.running,
        requests_waiting=figures.waiting,
    )


def encode_replica(replica: ReplicaStatus) -> api.ReplicaStatus:
    """Status of a replica to message."""
    known = replica.model
    found = api.ReplicaStatus(
        address=replica.address, serving=not replica.problem, problem=replica.problem
    )
    if known:
        found.model, found.device, found.dtype = known.name, known.device, known.dtype
        found.sessions, found.kv_cache_usage = known.sessions, known.cache_usage
        found.exactness, found.kernels = known.exactness, known.kernels
        found.fingerprint = known.fingerprint
        found.weights_bytes, found.context_length = known.weights_bytes, known.context_length
        found.cache_positions, found.full_sessions = known.cache_positions, known.full_sessions
        found.round_trip_seconds = replica.round_trip_seconds
        found.acceptance_rate = replica.acceptance_rate or 0.0
        found.draft_tokens = replica.draft_tokens
    return found
