"""Converts errors to gRPC statuses and back, with `google.rpc` details.

An error that is raised on the server's side of a call is raised again on the caller's side. A
status without Tandem's details comes from gRPC itself, not from the peer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import cast

from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc import Call, Status, StatusCode
from grpc.aio import AioRpcError
from grpc_status import rpc_status

from tandem.protos.errors import (
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
MAX_TEXT_LENGTH = 500
LOST_CODES = (StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.INTERNAL)


def encode(error: TandemError) -> Status:
    """Return the status with which a server aborts a call."""
    status: Status = rpc_status.to_status(_status(error))
    return status


def pack(error: TandemError) -> bytes:
    """Return a serialised google.rpc.Status for an error that travels in a message."""
    packed: bytes = _status(error).SerializeToString()
    return packed


def _status(error: TandemError) -> status_pb2.Status:
    message = _clip(str(error))
    status = status_pb2.Status(code=StatusCode[error.status].value[0], message=message)

    def attach(detail: Message) -> None:
        status.details.add().Pack(detail)

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
    return status


def unpack(packed: bytes) -> TandemError:
    """Return the error in a serialised google.rpc.Status that `pack` has returned."""
    try:
        status = status_pb2.Status.FromString(packed)
    except DecodeError:  # a peer may send invalid bytes
        status = status_pb2.Status()
    return _error(status.message, status) or Internal(status.message or "an unknown failure")


def _clip(text: str) -> str:
    """Cut a text so that several such texts fit into the metadata of a call."""
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}..."


def decode(failure: AioRpcError) -> TandemError:
    """Convert the failure of a call to the error that caused it."""
    message = failure.details() or failure.code().name
    try:
        status = rpc_status.from_call(cast(Call, failure))
    except (DecodeError, ValueError):  # a peer may send invalid bytes
        status = None
    if status and (error := _error(message, status)):
        return error
    if failure.code() in LOST_CODES:
        return TransportLost(message)
    if failure.code() is StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(message)
    if failure.code() is StatusCode.RESOURCE_EXHAUSTED:
        return Busy(message)
    return Internal(f"{failure.code().name}: {message}")


def problem_of(error: Exception) -> str:
    """Return the reason why a call failed as a text for logs. Any type of error is accepted."""
    if isinstance(error, AioRpcError):
        with suppress(Exception):
            return str(decode(error))
    return type(error).__name__


def _error(message: str, status: status_pb2.Status) -> TandemError | None:
    """Return the error in a status with Tandem's details, or None if it has no such details."""
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == DOMAIN:
            return _with_details(BY_REASON.get(info.reason, Internal), message, status)
    return None


def _with_details(kind: type[TandemError], message: str, status: status_pb2.Status) -> TandemError:
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


def is_cancelled() -> bool:
    """Tell whether the current task itself is being cancelled. This must be checked because gRPC
    raises the same exception when this process ends the call that the task waits for, or closes the
    channel.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
