"""The prompt of a client's message: a text, token ids, or a conversation."""

from __future__ import annotations

from google.protobuf.json_format import MessageToDict

from tandem.orchestrator.frontend.request import ChatMessage, Conversation
from tandem.protos.errors import InvalidRequest
from tandem.v1 import orchestrator_pb2 as api

MAX_ARGUMENTS_BYTES = 64 << 10  # they are decoded before a request has a place


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
