"""Every error that crosses a process border, and its gRPC status, in one table for both ends.

    TandemError
    |- InvalidRequest      INVALID_ARGUMENT     names every offending field
    |- SessionMiss         NOT_FOUND            resend once from base 0
    |- StaleTurn           ABORTED              drop: a newer call is already served
    |- Busy                RESOURCE_EXHAUSTED   back off for `retry_after` seconds
    |- IncompatibleModels  FAILED_PRECONDITION  never pair them
    |- Unavailable         UNAVAILABLE          a peer cannot be used now
    |  `- TransportLost    (sent as its parent) the peer did not answer: try another replica
    |- DeadlineExceeded    DEADLINE_EXCEEDED    the caller's time ran out
    |- Unauthenticated     UNAUTHENTICATED      no certificate or token, or not a known one
    |- PermissionDenied    PERMISSION_DENIED    a known caller that may not call this
    |- Internal            INTERNAL             a bug; the message has nothing of the request
    `- Unusable            (never sent)         a process cannot start: what, and why

This module knows gRPC's status codes by name only, and does no I/O.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar


class TandemError(Exception):
    """The root of all errors. The error's message is one line that never contains prompt text."""

    status: ClassVar[str] = "INTERNAL"  # the name of a gRPC status code
    reason: ClassVar[str] = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that cannot be used as it is."""

    field: str
    problem: str
    code: str = dataclasses.field(default="", compare=False)  # OpenAI's name for the problem

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
    """The service does not hold the session as the caller believes."""

    status = "NOT_FOUND"
    reason = "SESSION_MISS"


class StaleTurn(TandemError):
    """A newer call of the session was already served."""

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
    """The peer itself did not answer."""


class DeadlineExceeded(TandemError):
    """The caller's time ran out."""

    status = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class Unauthenticated(TandemError):
    """The caller has not shown who it is."""

    status = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class PermissionDenied(TandemError):
    """The caller is known, and may not do this."""

    status = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class Internal(TandemError):
    """A bug on the side that answers."""


class Unusable(TandemError):
    """A process cannot start with what it was given."""


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
    """Tell whether the same call may succeed a little later."""
    return isinstance(error, Unavailable | Busy | DeadlineExceeded)
