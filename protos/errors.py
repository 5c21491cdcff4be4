"""The errors that one process reports to another, and the gRPC status of each error.

    TandemError
    |- InvalidRequest      INVALID_ARGUMENT     names every offending field
    |- SessionMiss         NOT_FOUND            send once more, with all tokens (base 0)
    |- StaleTurn           ABORTED              drop the call: a newer one was served
    |- Busy                RESOURCE_EXHAUSTED   back off for `retry_after` seconds
    |- IncompatibleModels  FAILED_PRECONDITION  never use these models together
    |- Unavailable         UNAVAILABLE          a peer cannot be used now
    |  `- TransportLost    (sent as its parent) the peer did not answer: try another replica
    |- DeadlineExceeded    DEADLINE_EXCEEDED    the time that the caller set ran out
    |- Unauthenticated     UNAUTHENTICATED      the certificate or token is missing or unknown
    |- PermissionDenied    PERMISSION_DENIED    the caller is known, but may not call this
    |- Internal            INTERNAL             a bug; the message says nothing about the request
    `- Unusable            (never sent)         a process cannot start; the message says why

This module knows gRPC's status codes by name only, and does no I/O.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar


class TandemError(Exception):
    """Base class of all errors of Tandem. An error's message is one line without prompt text."""

    status: ClassVar[str] = "INTERNAL"  # the name of a gRPC status code
    reason: ClassVar[str] = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request whose value cannot be used."""

    field: str
    problem: str
    code: str = dataclasses.field(default="", compare=False)  # OpenAI's code for the problem

    def __str__(self) -> str:
        return f"{self.field} {self.problem}"


class InvalidRequest(TandemError):
    """The request can never be served."""

    status = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"

    def __init__(self, *violations: Violation) -> None:
        super().__init__("; ".join(str(violation) for violation in violations))
        self.violations = violations

    @classmethod
    def of(cls, field: str, problem: str) -> InvalidRequest:
        """Return an error about a single field, which is the common case."""
        return cls(Violation(field, problem))


class SessionMiss(TandemError):
    """The service does not hold the session in the state that the caller expects."""

    status = "NOT_FOUND"
    reason = "SESSION_MISS"


class StaleTurn(TandemError):
    """The service has already served a newer call for the session."""

    status = "ABORTED"
    reason = "STALE_TURN"


class Busy(TandemError):
    """The service has no capacity now."""

    status = "RESOURCE_EXHAUSTED"
    reason = "BUSY"

    def __init__(self, message: str, retry_after: float = 0.05) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class IncompatibleModels(TandemError):
    """The drafter, the verifier and the front end do not have the same vocabulary."""

    status = "FAILED_PRECONDITION"
    reason = "INCOMPATIBLE_MODELS"


class Unavailable(TandemError):
    """Something that the request needs cannot be used now."""

    status = "UNAVAILABLE"
    reason = "UNAVAILABLE"


class TransportLost(Unavailable):
    """The peer did not respond at all."""


class DeadlineExceeded(TandemError):
    """The deadline that the caller set for the call has passed."""

    status = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class Unauthenticated(TandemError):
    """The caller has not proved who it is."""

    status = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class PermissionDenied(TandemError):
    """The caller is known, but may not make this call."""

    status = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class Internal(TandemError):
    """A bug in the process that answers the call."""


class Unusable(TandemError):
    """A process cannot start with the settings and files that it was given."""


BY_REASON: dict[str, type[TandemError]] = {
    error.reason: error
    for error in (
        InvalidRequest,
        SessionMiss,
        StaleTurn,
        Busy,
        IncompatibleModels,
        Unavailable,
        DeadlineExceeded,
        Unauthenticated,
        PermissionDenied,
        Internal,
    )
}


def is_transient(error: BaseException) -> bool:
    """Tell whether retrying the same call a little later may succeed."""
    return isinstance(error, Unavailable | Busy | DeadlineExceeded)
