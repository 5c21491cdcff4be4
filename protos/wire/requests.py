"""Converts the values that a cell sends to the model services to items of a request, by their type.
Guesses are passed on without being decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from tandem.protos.streams import Decoding, Drafting, EncodedGuess, Fact, Flow, Guess
from tandem.protos.wire.codec import encode_decoding, encode_drafting
from tandem.protos.wire.drafting import encode_guess
from tandem.v1 import common_pb2, verifier_pb2


def receive_guess(message: common_pb2.Guess) -> EncodedGuess:
    """Return a received guess, still encoded, to be passed on."""
    return EncodedGuess(message.behind, message.ByteSize(), message)


def pass_on_guess(stream: int, guess: EncodedGuess) -> common_pb2.Guess:
    """Return the message of the same guess, for another stream."""
    message = guess.message
    assert isinstance(message, common_pb2.Guess)
    message.stream = stream
    return message


def encode_fact_tokens(stream: int, fact: Fact) -> common_pb2.Fact:
    """Convert a fact to a message with only the parts that a drafter needs."""
    return common_pb2.Fact(stream=stream, start=fact.start, tokens=fact.tokens)


def encode_flow(stream: int, flow: Flow) -> verifier_pb2.Flow:
    """Convert a flow to a message."""
    return verifier_pb2.Flow(stream=stream, paused=flow.paused)


def encode_closing(session_id: bytes, turn: int) -> tuple[str, common_pb2.Closing]:
    """Return the field of a request, and the closing to add to it."""
    return "closings", common_pb2.Closing(session_id=session_id, turn=turn)


# The field of a request, and the function that encodes an item of it, by the value's type.
ITEMS: dict[type[object], tuple[str, Callable[[int, Any], Message]]] = {
    Decoding: ("open", encode_decoding),
    Drafting: ("open", encode_drafting),
    Fact: ("facts", encode_fact_tokens),
    Guess: ("guesses", encode_guess),
    EncodedGuess: ("guesses", pass_on_guess),
    Flow: ("flows", encode_flow),
}


def encode_item(stream: int, value: object) -> tuple[str, Message]:
    """Return the field of a request, and the item to add to it."""
    field, encode = ITEMS[type(value)]
    return field, encode(stream, value)
