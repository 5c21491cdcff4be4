"""Errors to gRPC statuses and back, with `google.rpc` details.

What is raised on one side of a call is raised on the other. A status without our details was made
by the transport: the peer did not answer.
"""

from __future__ import annotations

from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata

from protos.errors import (
    BY_REASON,
    Busy,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    TandemError,
    TransportLost,
    Violation,
)

DOMAIN = "tandem"
LONGEST_TEXT = 500
DETAILS_KEY = "grpc-status-details-bin"
LOST = (StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.INTERNAL)


def encode(error: TandemError) -> tuple[StatusCode, str, Metadata]:
    """What a server aborts with: code, message, trailing metadata."""
    packed = pack(error)
    return StatusCode[error.status], _clip(str(error)), Metadata((DETAILS_KEY, packed))


def pack(error: TandemError) -> bytes:
    """A google.rpc.Status that says all of an error."""
    message = _clip(str(error))
    status = status_pb2.Status(code=StatusCode[error.status].value[0], message=message)
    details: list[any_pb2.Any] = []

    def attach(detail: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest) -> None:
        packed = any_pb2.Any()
        packed.Pack(detail)
        details.append(packed)

    attach(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))
    if isinstance(error, InvalidRequest):
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=v.field, description=_clip(v.problem))
            for v in error.violations
        ]
        attach(error_details_pb2.BadRequest(field_violations=violations))
    if isinstance(error, Busy):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.retry_after * 1000))
        attach(retry)
    status.details.extend(details)
    packed: bytes = status.SerializeToString()
    return packed


def unpack(packed: bytes) -> TandemError:
    """The error that a google.rpc.Status of ours stands for."""
    status = _parse(packed)
    return _reported(status.message, status) or Internal(status.message or "an unknown failure")


def _clip(text: str) -> str:
    """A text that fits into metadata together with its fellows."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."


def decode(failure: AioRpcError) -> TandemError:
    """The error that a failed call stands for."""
    message = failure.details() or failure.code().name
    if error := _reported(message, _details(failure)):
        return error
    if failure.code() in LOST:
        return TransportLost(message)
    if failure.code() is StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(message)
    if failure.code() is StatusCode.RESOURCE_EXHAUSTED:
        return Busy(message)
    return Internal(f"{failure.code().name}: {message}")


def _reported(message: str, status: status_pb2.Status) -> TandemError | None:
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == DOMAIN:
            return _authored(BY_REASON.get(info.reason, Internal), message, status)
    return None


def _details(failure: AioRpcError) -> status_pb2.Status:
    trailing = failure.trailing_metadata()
    packed = trailing.get(DETAILS_KEY, b"") if trailing is not None else b""
    return _parse(packed if isinstance(packed, bytes) else packed.encode())


def _parse(packed: bytes) -> status_pb2.Status:
    try:
        return status_pb2.Status.FromString(packed)
    except DecodeError:  # a peer may say anything
        return status_pb2.Status()


def _authored(kind: type[TandemError], message: str, status: status_pb2.Status) -> TandemError:
    bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    if kind is InvalidRequest:
        for detail in status.details:
            if detail.Unpack(bad):
                fields = bad.field_violations
                return InvalidRequest(*(Violation(v.field, v.description) for v in fields))
    if kind is Busy:
        for detail in status.details:
            if detail.Unpack(retry):
                return Busy(message, retry.retry_delay.ToMilliseconds() / 1000)
    return kind(message) if kind is not InvalidRequest else InvalidRequest.of("request", message)
