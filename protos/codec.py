"""Values to messages and back; those of drafts and options are in `drafting` and `sampling`.

Decoding refuses what cannot be a value of its type, naming the field; limits of a model are the
service's to check.
"""

from __future__ import annotations

import math

from protos import types
from protos.drafting import decode_draft, encode_draft
from protos.errors import InvalidRequest, Violation
from protos.tandem.v1 import common_pb2, drafter_pb2, orchestrator_pb2, verifier_pb2

SESSION_ID_BYTES = 16
CLIENT_BYTES = 32


def encode_context(context: types.Context) -> common_pb2.Context:
    """Context to message."""
    return common_pb2.Context(
        session_id=context.session_id,
        turn=context.turn,
        base=context.base,
        tokens=context.tokens,
        epoch=context.epoch,
        client=context.client,
    )


def decode_session_id(field: str, session_id: bytes) -> bytes:
    """The id; raises InvalidRequest if it has not its length."""
    if violations := _wrong_length(field, session_id):
        raise InvalidRequest(*violations)
    return session_id


def _wrong_length(field: str, session_id: bytes) -> list[Violation]:
    if len(session_id) == SESSION_ID_BYTES:
        return []
    return [Violation(field, f"has {len(session_id)} bytes, not {SESSION_ID_BYTES}")]


def decode_context(message: common_pb2.Context) -> types.Context:
    """Message to context; raises InvalidRequest."""
    violations = _wrong_length("context.session_id", message.session_id)
    if not message.tokens:
        violations.append(Violation("context.tokens", "is empty"))
    if len(message.client) > CLIENT_BYTES:
        problem = f"has {len(message.client)} bytes, above {CLIENT_BYTES}"
        violations.append(Violation("context.client", problem))
    if violations:
        raise InvalidRequest(*violations)
    return types.Context(
        message.session_id,
        message.turn,
        message.base,
        tuple(message.tokens),
        message.epoch,
        message.client,
    )


def encode_proposal(proposal: types.Proposal) -> drafter_pb2.ProposeResponse:
    """Proposal to message."""
    return drafter_pb2.ProposeResponse(
        draft=encode_draft(proposal.draft),
        cached_len=proposal.cached_len,
        epoch=proposal.epoch,
        expected=proposal.expected,
        seconds=proposal.seconds,
    )


def decode_proposal(message: drafter_pb2.ProposeResponse) -> types.Proposal:
    """Message to proposal; raises InvalidRequest if the drafter sent no tree, or no numbers."""
    for field in ("expected", "seconds"):
        if not 0 <= (value := getattr(message, field)) < math.inf:
            raise InvalidRequest.of(field, f"is {value:g}, below 0 or not finite")
    return types.Proposal(
        decode_draft(message.draft),
        message.cached_len,
        message.epoch,
        message.expected,
        message.seconds,
    )


def encode_verdict(verdict: types.Verdict) -> verifier_pb2.VerifyResponse:
    """Verdict to message."""
    return verifier_pb2.VerifyResponse(
        accepted=verdict.accepted,
        next_token=verdict.next_token,
        cached_len=verdict.cached_len,
        epoch=verdict.epoch,
        reused=verdict.reused,
        logprobs=[encode_logprobs(each) for each in verdict.logprobs],
        token_seconds=verdict.token_seconds,
    )


def decode_verdict(message: verifier_pb2.VerifyResponse) -> types.Verdict:
    """Message to verdict."""
    return types.Verdict(
        tuple(message.accepted),
        message.next_token,
        message.cached_len,
        message.epoch,
        message.reused,
        tuple(decode_logprobs(each) for each in message.logprobs),
        message.token_seconds,
    )


def encode_logprobs(logprobs: types.TokenLogprobs) -> orchestrator_pb2.TokenLogprobs:
    """Log-probabilities to message."""
    ids, values = zip(*logprobs.top, strict=True) if logprobs.top else ((), ())
    return orchestrator_pb2.TokenLogprobs(
        logprob=logprobs.logprob, top_ids=ids, top_logprobs=values
    )


def decode_logprobs(message: orchestrator_pb2.TokenLogprobs) -> types.TokenLogprobs:
    """Message to log-probabilities."""
    return types.TokenLogprobs(
        message.logprob, tuple(zip(message.top_ids, message.top_logprobs, strict=False))
    )


def encode_model(model: types.ModelDescription) -> common_pb2.ModelDescription:
    """Description to message."""
    return common_pb2.ModelDescription(
        name=model.name,
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        end_token_ids=model.end_token_ids,
        device=model.device,
        dtype=model.dtype,
        sessions=model.sessions,
        exactness=model.exactness,
        cache_usage=model.cache_usage,
    )


def decode_model(message: common_pb2.ModelDescription) -> types.ModelDescription:
    """Message to description."""
    return types.ModelDescription(
        message.name,
        message.tokenizer_fingerprint,
        message.vocab_size,
        message.context_length,
        tuple(message.end_token_ids),
        message.device,
        message.dtype,
        message.sessions,
        message.exactness,
        message.cache_usage,
    )
