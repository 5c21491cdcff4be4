"""Types to messages and back: the only hand-written code that names protobuf fields of the internal
services.

Decoding refuses what cannot be a value of its type, naming the field; limits of a model are the
service's to check.
"""

from __future__ import annotations

import math

from protos import tree, types
from protos.errors import InvalidRequest, Violation
from protos.tandem.v1 import common_pb2, drafter_pb2, verifier_pb2

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


def encode_sampling(sampling: types.SamplingParams) -> common_pb2.SamplingParams:
    """Sampling to message; what is off is not sent, and greedy sends nothing."""
    if sampling.greedy:
        return common_pb2.SamplingParams()
    return common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=0.0 if sampling.top_p == 1 else sampling.top_p,
        seed=sampling.seed,
    )


def decode_sampling(message: common_pb2.SamplingParams) -> types.SamplingParams:
    """Message to sampling; raises InvalidRequest."""
    violations = []
    if not (math.isfinite(message.temperature) and message.temperature >= 0):
        violations.append(
            Violation("sampling.temperature", f"is {message.temperature}, below 0 or not finite")
        )
    if not 0 <= message.top_p <= 1:
        violations.append(Violation("sampling.top_p", f"is {message.top_p}, not in 0..1"))
    if violations:
        raise InvalidRequest(*violations)
    return types.SamplingParams(
        message.temperature, message.top_k, message.top_p or 1.0, message.seed
    )


def encode_shape(shape: types.DraftShape) -> common_pb2.DraftShape:
    """Shape to message."""
    return common_pb2.DraftShape(levels=shape.levels, branches=shape.branches, nodes=shape.nodes)


def decode_shape(message: common_pb2.DraftShape) -> types.DraftShape:
    """Message to shape; raises InvalidRequest."""
    if message.levels > types.MAX_LEVELS:
        limit = f"is {message.levels}, above {types.MAX_LEVELS}"
        raise InvalidRequest.of("shape.levels", limit)
    if message.nodes > types.MAX_NODES:
        raise InvalidRequest.of("shape.nodes", f"is {message.nodes}, above {types.MAX_NODES}")
    if message.branches > types.MAX_NODES:
        raise InvalidRequest.of("shape.branches", f"is {message.branches}, above {types.MAX_NODES}")
    return types.DraftShape(message.levels, message.branches, message.nodes)


def encode_draft(draft: types.Draft) -> common_pb2.Draft:
    """Draft to message; a chain sends no parents."""
    if tree.is_chain(draft.parents):
        return common_pb2.Draft(tokens=draft.tokens)
    return common_pb2.Draft(tokens=draft.tokens, parents=[p + 1 for p in draft.parents])


def decode_draft(message: common_pb2.Draft) -> types.Draft:
    """Message to draft; raises InvalidRequest."""
    if len(message.tokens) > types.MAX_NODES:
        raise InvalidRequest.of(
            "draft.tokens", f"has {len(message.tokens)} nodes, above {types.MAX_NODES}"
        )
    if not message.parents:
        return types.Draft.chain(tuple(message.tokens))
    parents = tuple(parent - 1 for parent in message.parents)
    if len(parents) != len(message.tokens):
        counts = f"has {len(parents)} entries for {len(message.tokens)} tokens"
        raise InvalidRequest.of("draft.parents", counts)
    if problem := tree.problem(parents):
        raise InvalidRequest.of("draft.parents", problem)
    return types.Draft(tuple(message.tokens), parents)


def encode_proposal(proposal: types.Proposal) -> drafter_pb2.ProposeResponse:
    """Proposal to message."""
    return drafter_pb2.ProposeResponse(
        draft=encode_draft(proposal.draft),
        cached_len=proposal.cached_len,
        epoch=proposal.epoch,
    )


def decode_proposal(message: drafter_pb2.ProposeResponse) -> types.Proposal:
    """Message to proposal; raises InvalidRequest if the drafter sent no tree."""
    return types.Proposal(decode_draft(message.draft), message.cached_len, message.epoch)


def encode_verdict(verdict: types.Verdict) -> verifier_pb2.VerifyResponse:
    """Verdict to message."""
    return verifier_pb2.VerifyResponse(
        accepted=verdict.accepted,
        next_token=verdict.next_token,
        cached_len=verdict.cached_len,
        epoch=verdict.epoch,
        reused=verdict.reused,
    )


def decode_verdict(message: verifier_pb2.VerifyResponse) -> types.Verdict:
    """Message to verdict."""
    return types.Verdict(
        tuple(message.accepted),
        message.next_token,
        message.cached_len,
        message.epoch,
        message.reused,
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
        max_sessions=model.max_sessions,
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
        message.max_sessions,
        message.exactness,
        message.cache_usage,
    )
