"""What front end and round workers exchange, to messages and back."""

from __future__ import annotations

from tandem.protos.errors import InvalidRequest
from tandem.protos.rounds import Fallback, Finish, Members, RunRequest, Step
from tandem.protos.wire.codec import decode_logprobs, decode_session_id, encode_logprobs
from tandem.protos.wire.drafting import decode_shape, encode_shape
from tandem.protos.wire.sampling import decode_sampling, encode_sampling
from tandem.v1 import rounds_pb2

MOST = (1 << 32) - 1  # of a turn, and of a length
MOST_OPENINGS = 1 << 20  # of one request


def encode_run(request: RunRequest) -> rounds_pb2.RunRequest:
    """Request to message."""
    return rounds_pb2.RunRequest(
        request_id=request.request_id,
        prompt=request.prompt,
        completion=request.completion,
        sampling=encode_sampling(request.sampling),
        max_new_tokens=request.max_new_tokens,
        stop_token_ids=sorted(request.stop_token_ids),
        shape=encode_shape(request.shape),
        session_id=request.session_id,
        first_turn=request.first_turn,
        client=request.client,
        traceparent=request.traceparent,
        verifier_group=request.verifier_group,
    )


def decode_run(message: rounds_pb2.RunRequest) -> RunRequest:
    """Message to request; raises InvalidRequest."""
    for field, most in (
        ("max_new_tokens", MOST - len(message.prompt)),
        ("first_turn", MOST - MOST_OPENINGS),
    ):
        if (value := getattr(message, field)) > most:
            raise InvalidRequest.of(field, f"is {value}, above {most}")
    return RunRequest(
        request_id=message.request_id,
        session_id=decode_session_id("session_id", message.session_id),
        prompt=tuple(message.prompt),
        sampling=decode_sampling(message.sampling),
        max_new_tokens=message.max_new_tokens,
        stop_token_ids=frozenset(message.stop_token_ids),
        shape=decode_shape(message.shape),
        client=message.client,
        completion=tuple(message.completion),
        first_turn=message.first_turn,
        traceparent=message.traceparent,
        verifier_group=message.verifier_group,
    )


def encode_step(step: Step) -> rounds_pb2.RunResponse:
    """Step to message."""
    return rounds_pb2.RunResponse(
        tokens=step.tokens,
        drafted=step.drafted,
        accepted=step.accepted,
        finish=rounds_pb2.Finish.ValueType(step.finish.value if step.finish else 0),
        matched_token_id=step.matched_token_id,
        reused=step.reused,
        logprobs=[encode_logprobs(each) for each in step.logprobs],
        expected=step.expected,
        late=step.late,
        unused=step.unused,
        seconds=step.seconds,
        drafter_switches=step.drafter_switches,
        verifier_switches=step.verifier_switches,
        drafter_round_trip=step.drafter_round_trip,
        verifier_round_trip=step.verifier_round_trip,
        fallback=rounds_pb2.Fallback.ValueType(step.fallback.value if step.fallback else 0),
        verifier_group=step.verifier_group,
        drafter=step.drafter,
    )


def decode_step(message: rounds_pb2.RunResponse) -> Step:
    """Message to step."""
    matched = message.HasField("matched_token_id")
    return Step(
        tokens=tuple(message.tokens),
        drafted=message.drafted,
        accepted=message.accepted,
        reused=message.reused,
        logprobs=tuple(map(decode_logprobs, message.logprobs)),
        expected=message.expected,
        late=message.late,
        unused=message.unused,
        seconds=message.seconds,
        finish=Finish(message.finish) if message.finish else None,
        matched_token_id=message.matched_token_id if matched else None,
        drafter_switches=message.drafter_switches,
        verifier_switches=message.verifier_switches,
        drafter_round_trip=message.drafter_round_trip,
        verifier_round_trip=message.verifier_round_trip,
        fallback=Fallback(message.fallback) if message.fallback else None,
        verifier_group=message.verifier_group,
        drafter=message.drafter,
    )


def encode_attend(members: Members | None) -> rounds_pb2.AttendRequest:
    """What the front end reports; without members, a heartbeat."""
    if members is None:
        return rounds_pb2.AttendRequest()
    message = rounds_pb2.Members(verifiers=members.verifiers, drafters=members.drafters)
    return rounds_pb2.AttendRequest(members=message)


def decode_attend(message: rounds_pb2.AttendRequest) -> Members | None:
    """Message to members, if it has some."""
    if not message.HasField("members"):
        return None
    return Members(tuple(message.members.verifiers), tuple(message.members.drafters))
