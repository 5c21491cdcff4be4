"""Decode the gRPC API's messages into requests, and encode chunks and answers as messages."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as ProtoMessage

from tandem.orchestrator.metrics import SpeculationStats
from tandem.orchestrator.requests.answer import Answer, Chunk
from tandem.orchestrator.requests.message import Message
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
    connection_digest,
    scope_of,
)
from tandem.orchestrator.requests.tools import NAME, json_object
from tandem.protos.errors import InvalidRequest, Violation
from tandem.protos.grammar import Grammar, GrammarKind
from tandem.protos.types import Rule, TokenLogprobs
from tandem.protos.wire.drafting import decode_choice
from tandem.v1 import orchestrator_pb2 as api

MAX_ARGUMENTS_BYTES = 64 << 10  # limit on template arguments, which are decoded before admission


def decode_request(
    message: api.GenerateRequest,
    client: bytes = b"",
    connection: str = "",
    resume_from: int = 0,
    received: tuple[int, ...] = (),
) -> Request:
    """Decode a request. If the client gives no name, its connection identifies it."""
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
        _given(message).get("logprobs"),
        _given(message).get("prompt_logprobs"),
        message.echo,
        message.return_token_ids,
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


def _given(message: ProtoMessage) -> dict[str, Any]:
    """Return the fields that are set, including fields that are set to zero."""
    return {field.name: value for field, value in message.ListFields()}


def decode_prompt(message: api.GenerateRequest) -> str | tuple[int, ...] | Conversation | None:
    """Decode the prompt of a request; None if it has no prompt."""
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
    continued = chat.continue_final_message
    given = chat.HasField("add_generation_prompt")
    prompted = chat.add_generation_prompt if given else not continued
    try:
        arguments = MessageToDict(chat.template_arguments)
    except ValueError:
        problem = "has a number that is not finite"
        raise InvalidRequest.of("messages.template_arguments", problem) from None
    whole = {name: _whole(value) for name, value in arguments.items()}
    return Conversation(
        tuple(_message(index, each) for index, each in enumerate(chat.messages)),
        prompted,
        whole,
        tuple(_tool(index, each) for index, each in enumerate(chat.tools)),
        chat.tool_choice or "auto",
        chat.parallel_tool_calls or not chat.HasField("parallel_tool_calls"),
        continued,
    )


def _message(index: int, message: api.ChatMessage) -> ChatMessage:
    calls = []
    for number, call in enumerate(message.tool_calls):
        field = f"messages[{index}].tool_calls[{number}].arguments"
        _json_object(field, call.arguments)
        calls.append(ToolCall(call.name, call.arguments or "{}", call.id))
    return ChatMessage(
        message.role,
        message.content,
        message.name,
        message.reasoning_content,
        tuple(calls),
        message.tool_call_id,
    )


def _tool(index: int, tool: api.Tool) -> Tool:
    if not re.fullmatch(NAME, tool.name):
        raise InvalidRequest.of(f"messages.tools[{index}].name", f"is not of the form {NAME}")
    parameters = _json_object(f"messages.tools[{index}].parameters", tool.parameters)
    return Tool(tool.name, tool.description or None, parameters, tool.strict)


def _json_object(field: str, text: str) -> dict[str, Any] | None:
    """Parse a field's text as a JSON object; None if the text is empty. Raises InvalidRequest."""
    try:
        return json_object(text) if text else None
    except ValueError as wrong:
        raise InvalidRequest.of(field, f"is not {wrong}") from None


def _whole(value: object) -> object:
    """Turn whole floats into integers for chat templates, as a protobuf Struct has only floats."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def encode_chunk(chunk: Chunk) -> api.Chunk:
    """Encode a chunk of an answer as a gRPC message."""
    message = Message()
    for part in chunk.parts:
        message.add(part)
    return api.Chunk(
        text=chunk.prompt.text + chunk.text,
        token_ids=chunk.token_ids,
        completion_tokens=chunk.completion_tokens,
        logprobs=_encode_logprobs(chunk.logprobs),
        request_id=chunk.request_id,
        seed=chunk.seed,
        **_encode_message(message) if chunk.parts else {},
    )


def encode_answer(answer: Answer) -> api.GenerateResponse:
    """Encode a complete answer as a gRPC message."""
    response = api.GenerateResponse(
        request_id=answer.request_id,
        text=answer.prompt.text + answer.text,
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
        prompt_token_ids=answer.prompt.token_ids,
        prompt_logprobs=_encode_logprobs(answer.prompt.logprobs),
        **_encode_message(answer.message) if answer.message else {},
    )
    if isinstance(answer.matched_stop, str):
        response.matched_text = answer.matched_stop
    elif answer.matched_stop is not None:
        response.matched_token_id = answer.matched_stop
    return response


def _encode_message(message: Message) -> dict[str, Any]:
    calls = [api.ToolCall(**asdict(each)) for each in message.tool_calls]
    thought = message.reasoning_content
    return {"content": message.content, "reasoning_content": thought, "tool_calls": calls}


def encode_stats(stats: SpeculationStats, rule: Rule) -> api.SpeculationSummary:
    """Encode the speculation statistics of a request as a gRPC message."""
    return api.SpeculationSummary(
        num_spec_steps=stats.steps,
        num_steps_with_guesses=stats.steps_with_drafts,
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
            rank=each.rank,
        )
        for each in logprobs
    ]
