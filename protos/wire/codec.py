"""Converts values to messages and back. `drafting` converts proposals, `sampling` sampling options,
`logprobs` log-probabilities, and `registration` the registrations of drafters.

Decoding refuses a message with an invalid value, and names the field. The limits of a model are
checked by the service that holds the model.
"""

from __future__ import annotations

from dataclasses import asdict

from tandem.protos import streams, types
from tandem.protos.errors import InvalidRequest, Violation
from tandem.protos.generation import GenerationDefaults
from tandem.protos.wire.drafting import decode_shape, encode_shape
from tandem.protos.wire.logprobs import (
    decode_logprobs,
    decode_prompt_logprobs,
    encode_logprobs,
    encode_prompt_logprobs,
)
from tandem.protos.wire.sampling import decode_sampling, encode_sampling
from tandem.v1 import common_pb2, drafter_pb2, verifier_pb2

SESSION_ID_BYTES = 16
CLIENT_BYTES = 32


def encode_context(context: types.Context) -> common_pb2.Context:
    """Convert a context to a message."""
    return common_pb2.Context(
        session_id=context.session_id,
        turn=context.turn,
        base=context.base,
        tokens=context.tokens,
        epoch=context.epoch,
        client=context.client,
    )


def decode_context(message: common_pb2.Context) -> types.Context:
    """Convert a message to a context. Raises InvalidRequest if a value is invalid."""
    violations = list[Violation]()
    if (size := len(message.session_id)) != SESSION_ID_BYTES:
        problem = f"has {size} bytes, not {SESSION_ID_BYTES}"
        violations.append(Violation("context.session_id", problem))
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


def encode_decoding(stream: int, opening: streams.Decoding) -> verifier_pb2.Decoding:
    """Convert an opening of a stream at a verifier to a message."""
    return verifier_pb2.Decoding(
        stream=stream,
        context=encode_context(opening.context),
        sampling=encode_sampling(opening.sampling),
        until=opening.until,
        stop_token_ids=opening.stop_token_ids,
        lockstep=opening.lockstep,
        once=opening.once,
        suffix_shape=encode_shape(opening.suffix_shape) if opening.suffix_shape.levels else None,
        known=opening.known,
        request_id=opening.request_id,
        traceparent=opening.traceparent,
        forced=opening.forced,
        prompt_logprobs=encode_prompt_logprobs(opening.prompt_logprobs),
    )


def decode_decoding(message: verifier_pb2.Decoding) -> streams.Decoding:
    """Convert a message to an opening of a stream at a verifier. Raises InvalidRequest if a value
    is invalid.
    """
    return streams.Decoding(
        context=decode_context(message.context),
        sampling=decode_sampling(message.sampling),
        until=message.until,
        stop_token_ids=frozenset(message.stop_token_ids),
        lockstep=message.lockstep,
        once=message.once,
        suffix_shape=decode_shape(message.suffix_shape),
        known=tuple(message.known),
        request_id=message.request_id,
        traceparent=message.traceparent,
        forced=message.forced,
        prompt_logprobs=decode_prompt_logprobs(message),
    )


def encode_drafting(stream: int, opening: streams.Drafting) -> drafter_pb2.Drafting:
    """Convert an opening of a stream at a drafter to a message."""
    return drafter_pb2.Drafting(
        stream=stream,
        context=encode_context(opening.context),
        sampling=encode_sampling(opening.sampling),
        shape=encode_shape(opening.shape),
        lockstep=opening.lockstep,
        once=opening.once,
        request_id=opening.request_id,
        traceparent=opening.traceparent,
    )


def decode_drafting(message: drafter_pb2.Drafting) -> streams.Drafting:
    """Convert a message to an opening of a stream at a drafter. Raises InvalidRequest if a value is
    invalid.
    """
    return streams.Drafting(
        context=decode_context(message.context),
        sampling=decode_sampling(message.sampling),
        shape=decode_shape(message.shape),
        lockstep=message.lockstep,
        once=message.once,
        request_id=message.request_id,
        traceparent=message.traceparent,
    )


def encode_commit(stream: int, commit: streams.Commit) -> common_pb2.Commit:
    """Convert a commit to a message."""
    return common_pb2.Commit(
        stream=stream,
        start=commit.start,
        tokens=commit.tokens,
        drafted=commit.drafted,
        accepted=commit.accepted,
        epoch=commit.epoch,
        reused=commit.reused,
        logprobs=[encode_logprobs(each) for each in commit.logprobs],
        expected=commit.expected,
        late=commit.late,
        unused=commit.unused,
        found=commit.found,
        found_accepted=commit.found_accepted,
    )


def decode_commit(message: common_pb2.Commit) -> streams.Commit:
    """Convert a message to a commit."""
    return streams.Commit(
        message.start,
        tuple(message.tokens),
        message.drafted,
        message.accepted,
        message.epoch,
        message.reused,
        tuple(map(decode_logprobs, message.logprobs)),
        message.expected,
        message.late,
        message.unused,
        message.found,
        message.found_accepted,
    )


def encode_passes(passes: streams.PassTimes) -> common_pb2.PassTimes:
    """Convert the times of forward passes to a message."""
    return common_pb2.PassTimes(newest=passes.newest, light=passes.light)


def decode_passes(message: common_pb2.PassTimes) -> streams.PassTimes:
    """Convert a message to the times of forward passes."""
    return streams.PassTimes(message.newest, message.light)


def encode_model(model: types.ModelDescription) -> common_pb2.ModelDescription:
    """Convert a model's description to a message."""
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
        kernels=model.kernels,
        fingerprint=model.fingerprint,
        weights_fingerprint=model.weights_fingerprint,
        generation=encode_generation(model.generation),
        weights_bytes=model.weights_bytes,
        cache_positions=model.cache_positions,
        full_sessions=model.full_sessions,
        tokenizer=model.tokenizer,
        masked_tokens=model.masked_tokens,
    )


def decode_model(message: common_pb2.ModelDescription) -> types.ModelDescription:
    """Convert the protobuf message that describes a model."""
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
        message.kernels,
        message.fingerprint,
        message.weights_fingerprint,
        decode_generation(message.generation),
        message.weights_bytes,
        message.cache_positions,
        message.full_sessions,
        message.tokenizer,
        message.masked_tokens,
    )


def encode_generation(defaults: GenerationDefaults) -> common_pb2.GenerationDefaults:
    """Convert a model's default sampling options to a message. Defaults of None are not sent."""
    return common_pb2.GenerationDefaults(**asdict(defaults))


def decode_generation(message: common_pb2.GenerationDefaults) -> GenerationDefaults:
    """Convert a message to the default sampling options of a model."""
    given = {field.name: value for field, value in message.ListFields()}
    # repeated fields, whose names end with `_tokens`, become tuples
    lists = {name: tuple(given[name]) for name in given if name.endswith("_tokens")}
    return GenerationDefaults(**given | lists)
