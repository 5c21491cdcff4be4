"""Registrations of drafters: their metadata, the checks of their messages, and their addresses."""

from __future__ import annotations

import re

from tandem.protos.errors import IncompatibleModels, InvalidRequest
from tandem.protos.types import ModelDescription
from tandem.protos.wire.codec import decode_model, encode_model
from tandem.v1 import registration_pb2

TOKEN = "x-tandem-registration-token"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# a registered drafter has the address NAME@registered instead of HOST:PORT
REGISTERED = "@registered"
MAX_BYTES = 1 << 14


def encode_registration(name: str, model: ModelDescription) -> registration_pb2.RegisterRequest:
    """Return the message with which a drafter registers."""
    return registration_pb2.RegisterRequest(name=name, model=encode_model(model))


def decode_registration(
    message: registration_pb2.RegisterRequest, target: ModelDescription
) -> tuple[str, ModelDescription]:
    """Return the name and the model of a drafter from its first message. Raises InvalidRequest if
    the message is invalid, and IncompatibleModels if the drafter does not use the target's
    vocabulary.
    """
    if (size := message.ByteSize()) > MAX_BYTES:
        raise InvalidRequest.of("request", f"has {size} bytes, above {MAX_BYTES}")
    if not re.fullmatch(NAME, message.name):
        raise InvalidRequest.of("name", f"is {message.name[:80]!r}, which does not match {NAME}")
    if not message.HasField("model"):
        raise InvalidRequest.of("model", "is missing")
    return message.name, decode_described(message, target)


def decode_described(
    message: registration_pb2.RegisterRequest, target: ModelDescription
) -> ModelDescription:
    """Return the model that a drafter's message describes. Raises InvalidRequest if a text is not
    printable, and IncompatibleModels if the vocabulary is not the target's.
    """
    for field, value in message.model.ListFields():
        if isinstance(value, str) and not value.isprintable():
            problem = f"is {value[:80]!r}, which is not printable"
            raise InvalidRequest.of(f"model.{field.name}", problem)
    model = decode_model(message.model)
    if model.tokenizer_fingerprint != target.tokenizer_fingerprint:
        prints = f"{model.tokenizer_fingerprint!r}, expected {target.tokenizer_fingerprint!r}"
        problem = f"of {model.name} is {prints}: start the drafter with --speaks"
        raise IncompatibleModels(f"model.tokenizer_fingerprint {problem}")
    return model


def registered_name(address: str) -> str:
    """Return the name in an address of the form NAME@registered, or an empty string for other
    addresses.
    """
    return address.removesuffix(REGISTERED) if address.endswith(REGISTERED) else ""
