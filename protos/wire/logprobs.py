"""Converts log-probabilities, and requests for the log-probabilities of a prompt, to messages and
back.
"""

from __future__ import annotations

from dataclasses import asdict

from tandem.protos import streams, types
from tandem.protos.errors import InvalidRequest
from tandem.v1 import common_pb2, verifier_pb2


def encode_logprobs(logprobs: types.TokenLogprobs) -> common_pb2.Logprobs:
    """Convert log-probabilities to a message."""
    ids, values = zip(*logprobs.top, strict=True) if logprobs.top else ((), ())
    return common_pb2.Logprobs(
        logprob=logprobs.logprob, top_ids=ids, top_logprobs=values, rank=logprobs.rank
    )


def decode_logprobs(message: common_pb2.Logprobs) -> types.TokenLogprobs:
    """Convert a message to log-probabilities."""
    top = tuple(zip(message.top_ids, message.top_logprobs, strict=False))
    return types.TokenLogprobs(message.logprob, top, message.rank)


def encode_prompt_logprobs(
    wanted: streams.PromptLogprobs | None,
) -> verifier_pb2.PromptLogprobs | None:
    """Convert a request for the log-probabilities of a prompt to a message; None stays None."""
    return verifier_pb2.PromptLogprobs(**asdict(wanted)) if wanted else None


def decode_prompt_logprobs(
    message: verifier_pb2.Decoding,
) -> streams.PromptLogprobs | None:
    """Return the request for prompt log-probabilities in the message that opens a stream, or None
    if the message has no such request. Raises InvalidRequest if the request is invalid.
    """
    if not message.HasField("prompt_logprobs"):
        return None
    wanted, length = message.prompt_logprobs, len(message.context.tokens)
    if message.context.base:
        raise InvalidRequest.of("prompt_logprobs", "need context.base 0 and all tokens")
    if not 1 <= wanted.first <= wanted.until <= length:
        problem = f"cover positions {wanted.first}..{wanted.until}, not within 1..{length}"
        raise InvalidRequest.of("prompt_logprobs", problem)
    if wanted.top > types.MAX_LOGPROBS:
        problem = f"is {wanted.top}, above {types.MAX_LOGPROBS}"
        raise InvalidRequest.of("prompt_logprobs.top", problem)
    return streams.PromptLogprobs(wanted.first, wanted.until, wanted.top)
