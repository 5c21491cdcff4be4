"""Errors in OpenAI's shape, and the HTTP status of each."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

from tandem.protos.errors import Busy, Internal, InvalidRequest, TandemError

LONGEST = 2000  # characters of a message
STATUS = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "UNAUTHENTICATED": HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "FAILED_PRECONDITION": HTTPStatus.SERVICE_UNAVAILABLE,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "ABORTED": HTTPStatus.SERVICE_UNAVAILABLE,
    "DEADLINE_EXCEEDED": HTTPStatus.GATEWAY_TIMEOUT,
}
CODES = {
    HTTPStatus.UNAUTHORIZED: "invalid_api_key",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_exceeded",
}


def problem(
    status: HTTPStatus, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an error."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        kind = "rate_limit_error"
    code = code or CODES.get(status)
    return {"error": {"message": message[:LONGEST], "type": kind, "param": param, "code": code}}


def status_of(error: TandemError) -> HTTPStatus:
    """Its HTTP status; another model than the one that is served was not found."""
    if isinstance(error, InvalidRequest) and {v.field for v in error.violations} == {"model"}:
        return HTTPStatus.NOT_FOUND
    return STATUS.get(error.status, HTTPStatus.INTERNAL_SERVER_ERROR)


def body_of(error: TandemError) -> dict[str, Any]:
    """What a client reads; of a bug only that there was one."""
    status = status_of(error)
    if status is HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, Internal):
        error = Internal("internal error; see the server's log")
    if not isinstance(error, InvalidRequest):
        return problem(status, str(error))
    param = error.violations[0].field
    code = next((each.code for each in error.violations if each.code), None)
    if status is HTTPStatus.NOT_FOUND and param == "model":
        code = "model_not_found"
    return problem(status, str(error), param, code)


def response(error: TandemError) -> JSONResponse:
    """The whole answer to a request that failed before it began."""
    headers = {}
    if isinstance(error, Busy):
        headers["retry-after"] = str(math.ceil(error.retry_after))
        headers["retry-after-ms"] = str(round(error.retry_after * 1000))
    if status_of(error) is HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(body_of(error), status_of(error), headers)
