"""Converts the values that a cell sends to the model services into items of a request message.
Proposals are forwarded without being decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from tandem.protos.streams import Commit, Decoding, Drafting, EncodedProposal, Flow, Proposal
from tandem.protos.wire.codec import encode_decoding, encode_drafting
from tandem.protos.wire.drafting import encode_proposal
from tandem.v1 import common_pb2, verifier_pb2


def receive_proposal(message: common_pb2.Proposal) -> EncodedProposal:
    """Return a received proposal, still encoded, so that it can be forwarded."""
    return EncodedProposal(message.behind, message.ByteSize(), message)


def pass_on_proposal(stream: int, proposal: EncodedProposal) -> common_pb2.Proposal:
    """Return the message of a received proposal, with the ID of the stream to which the message
    will be forwarded.
    """
    message = proposal.message
    assert isinstance(message, common_pb2.Proposal)
    message.stream = stream
    return message


def encode_commit_tokens(stream: int, commit: Commit) -> common_pb2.Commit:
    """Convert a commit to a message with only the parts that a drafter needs."""
    return common_pb2.Commit(stream=stream, start=commit.start, tokens=commit.tokens)


def encode_flow(stream: int, flow: Flow) -> verifier_pb2.Flow:
    """Convert a `Flow`, which pauses or resumes a session, to a message."""
    return verifier_pb2.Flow(stream=stream, paused=flow.paused)


def encode_closing(session_id: bytes, turn: int) -> tuple[str, common_pb2.Closing]:
    """Return the name of the request field for closings, and a message that closes the session."""
    return "closings", common_pb2.Closing(session_id=session_id, turn=turn)


# For each type of value: the request field to which it is added, and the function that encodes it.
ITEMS: dict[type[object], tuple[str, Callable[[int, Any], Message]]] = {
    Decoding: ("open", encode_decoding),
    Drafting: ("open", encode_drafting),
    Commit: ("commits", encode_commit_tokens),
    Proposal: ("proposals", encode_proposal),
    EncodedProposal: ("proposals", pass_on_proposal),
    Flow: ("flows", encode_flow),
}


def encode_item(stream: int, value: object) -> tuple[str, Message]:
    """Return the name of the request field for a value, and the message to add to that field."""
    field, encode = ITEMS[type(value)]
    return field, encode(stream, value)
